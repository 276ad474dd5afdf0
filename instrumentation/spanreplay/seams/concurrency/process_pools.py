"""Seam: pools of processes, `concurrent.futures.ProcessPoolExecutor` and `multiprocessing.Pool`.

A pool's workers are not lanes: their jobs have the lane of the `submit`, `map`, `apply_async` and so on, and each item
of a `Pool` one below. Which worker takes which item depends on timing, and decides the contents of its modules'
globals: a recording keeps it, and a replay gives each worker a queue of its own
(`replayer/schedule/process_queues.py`). In a replay, results of a pool arrive in the recorded order: a worker holds its
result back until the one before it has arrived.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime import worker_end
from spanreplay.runtime.lanes import Lane, current_crossing, current_lane, inside_lane, label_of, peel
from spanreplay.runtime.order.lane_end import LaneEnd
from spanreplay.runtime.order.lane_futures import adopt_future, hash_lane, when_told
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.processes import JoinToken, ProcessGroup, RemoteCrossing
from spanreplay.runtime.run import Run, active_run

_STAFF: Final = "_spanreplay_staff"
"""Attribute of the queue from which a pool's workers take items."""
_LANES: Final = "_spanreplay_lanes"
"""Attribute of the object that receives results of a pool's items: number of an item → lane."""
_KILLED: Final = "_spanreplay_killed"
"""Attribute of a process: whether it is the worker of a pool that kills it at its end."""
_TASK_QUEUE: Final = "_taskqueue"
_ITEM: Final = "px:item#"


class _Staff:
    """The workers of one pool."""

    def __init__(self, lane: str) -> None:
        self.lane = lane
        self._count = 0

    def hire(self) -> tuple[str, int]:
        """The lane of one more worker, and its number in the pool."""
        number, self._count = self._count, self._count + 1
        return f"{self.lane}/worker#{number + 1}", number


def install(module: Any, patches: Patches) -> None:
    """Patch `concurrent.futures.process` or `multiprocessing.pool`."""
    if module.__name__ == "multiprocessing.pool":
        _install_pool(module, patches)
        return
    patches.wrap(module._SafeQueue, "__init__", _make_queue)
    patches.wrap(module.ProcessPoolExecutor, "__init__", _make_executor)
    patches.wrap(module.ProcessPoolExecutor, "submit", _submit)
    patches.wrap(module.ProcessPoolExecutor, "_adjust_process_count", _adjust)
    patches.wrap(module, "_sendback_result", _send_back)


# ── workers ─────────────────────────────────────────────────────────────────────────────────────────
def hire(run: Run, process: Any) -> tuple[str, int] | None:
    """Lane and number of a pool's worker that is about to be started; None for any other process."""
    given: tuple[Any, ...] = getattr(process, "_args", ())
    staff: _Staff | None = getattr(given[0], _STAFF, None) if given else None
    if staff is None:
        return None
    lane, number = staff.hire()
    vars(process)[_KILLED] = _is_killed(process)
    if run.session is not None:
        from spanreplay.replayer.schedule.process_queues import RoutedItems

        if isinstance(given[0], RoutedItems):
            process._args = (given[0].hire(number, process), *given[1:])
    return lane, number


def _is_killed(process: Any) -> bool:
    """Whether a worker's pool kills it at its end."""
    return getattr(process._target, "__name__", "") != "_process_worker"


def _staff(run: Run) -> _Staff:
    return _Staff(current_lane(run.root_lane).child("pool").path)


class _Here:
    """The state of this process as a worker."""

    number = -1
    is_of_pool = False
    """Whether its pool is a `multiprocessing.Pool`, whose workers are ended by exceptions outside `Exception`."""
    lane_done = ""
    """The lane whose result it sends back next."""


_here: Final = _Here()


def enter(run: Run, process: Any, number: int) -> None:
    """Become a worker, in a process that was just started."""
    _here.number, _here.is_of_pool = number, _is_killed(process)
    given = process._args
    if not _is_killed(process):
        return
    queue, results, *rest = given
    if run.session is not None:
        from spanreplay.replayer.schedule.senders import InTurn

        results = InTurn(results, run.session.gate, _take_lane)
    process._args = (queue, results, *rest)
    if run.process_group is not None:
        worker_end.answer(run, run.process_group)


def state_before_end(run: Run, process: Any, join_token: JoinToken) -> None:
    """Have a worker report its work before its pool kills it."""
    shared = run.process_group
    if shared is None or not getattr(process, _KILLED, False) or process.exitcode is not None:
        return
    if worker_end.is_stillborn(shared, join_token.number):
        run.lock_order.workers.ended(join_token.lane)
        shared.join_tokens.remove(join_token)
        return
    limit_s = worker_end.WAIT_S_MAX if run.session is None else worker_end.REPLAY_WAIT_S_MAX
    worker_end.ask(shared, join_token.number, process, limit_s)


@dataclass(frozen=True)
class Missed:
    """The result of a `multiprocessing.Pool` item if one of its calls has no answer in a replay."""

    message: str


@dataclass(frozen=True)
class Work:
    """A job of a pool's worker: a function, and the lane that it runs in."""

    function: Any
    lane: str
    owner: int

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function in its lane."""
        run = active_run()
        if run is None:
            return self.function(*args, **kwargs)
        _here.lane_done = self.lane
        if run.session is not None:
            run.session.gate.census.started()
        parent = RemoteCrossing(self.owner, run.root_lane) if self.owner >= 0 else None
        lane = Lane(self.lane, parent)
        if _here.number >= 0:
            guard.guarded("the worker of an item", run.lock_order.workers.begun_in_process, lane, _here.number)
        if run.process_group is None:
            return self.function(*args, **kwargs)
        run.process_group.lanes_here.append(self.lane)
        run.process_group.at_work = self.lane
        try:
            with inside_lane(lane):
                return self.function(*args, **kwargs)
        except ReplayMiss as miss:
            if not _here.is_of_pool:
                raise
            return Missed(str(miss))
        finally:
            run.process_group.at_work = ""


def _take_lane() -> str:
    lane, _here.lane_done = _here.lane_done, ""
    return lane


# ── concurrent.futures ──────────────────────────────────────────────────────────────────────────────
def _make_queue(wrapped: Any, queue: Any, args: Any, kwargs: Any) -> None:
    vars(queue)["_spanreplay_made"] = (args, kwargs)
    wrapped(*args, **kwargs)


def _make_executor(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    run = active_run()
    if run is not None:
        guard.guarded("a pool of processes", _staff_executor, run, pool)


def _staff_executor(run: Run, pool: Any) -> None:
    if run.session is not None:
        from spanreplay.replayer.schedule.process_queues import route_executor

        route_executor(run, pool)
    setattr(pool._call_queue, _STAFF, _staff(run))


def _adjust(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    if run is not None and run.session is not None:
        from spanreplay.replayer.schedule.process_queues import hire_as_recorded

        if hire_as_recorded(pool):
            return None
    return wrapped(*args, **kwargs)


def _submit(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    if run is None or not args:
        return wrapped(*args, **kwargs)
    function, *rest = args
    owner = current_crossing(run.root_lane)
    lane = current_lane(run.root_lane).child(label_of("px", peel(function, tuple(rest))[0]), owner)
    shared: ProcessGroup = run.share()
    shared.lanes.append(lane.path)
    work = Work(function, lane.path, -1 if owner is None else owner.seq)
    if run.session is not None:
        from spanreplay.replayer.schedule.process_queues import expect

        expect(pool, lane.path)
    future = wrapped(work, *rest, **kwargs)
    adopt_future(future, hash_lane(lane.number, lane.path), LaneEnd(run, lane.path, is_remote=True))
    if run.session is not None:
        shared.state_handed(1)
        when_told(future, lambda: shared.state_handed(-1))
    return future


def _send_back(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    run, lane = active_run(), _take_lane()
    if run is None or run.session is None or not lane:
        return wrapped(*args, **kwargs)
    from spanreplay.replayer.schedule.senders import send_in_turn

    return send_in_turn(run.session.gate, lane, wrapped, args, kwargs)


# ── multiprocessing.Pool ────────────────────────────────────────────────────────────────────────────
class _Giving(threading.local):
    function: Any = None
    """The function that the calling thread gives to a pool."""


_giving: Final = _Giving()


def _install_pool(module: Any, patches: Patches) -> None:
    for name in ("apply_async", "_map_async", "imap", "imap_unordered"):
        patches.wrap(module.Pool, name, _give)
    for kind in (module.ApplyResult, module.MapResult, module.IMapIterator, module.IMapUnorderedIterator):
        patches.wrap(kind, "_set", _settle)
    patches.wrap(module.Pool, "_terminate_pool", _terminate_pool)
    patches.replace(module.Pool, _TASK_QUEUE, _TaskQueue())


def _terminate_pool(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """In a replay, let the workers get as far as when recorded before the pool empties their queues and ends them."""
    run, staff = active_run(), getattr(args[1], _STAFF, None)
    if run is not None and run.session is not None and staff is not None:
        guard.guarded("the end of a pool", run.session.ended_workers.wait_made, staff.lane, run.session.gate)
    return wrapped(*args, **kwargs)


def _give(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    before, _giving.function = _giving.function, args[0] if args else kwargs.get("func")
    try:
        return wrapped(*args, **kwargs)
    finally:
        _giving.function = before


class _TaskQueue:
    """Replaces a pool's attribute that is set after its other queues and before its workers are started."""

    def __get__(self, pool: Any, owner: Any = None) -> Any:
        return self if pool is None else vars(pool)[_TASK_QUEUE]

    def __set__(self, pool: Any, queue: Any) -> None:
        run = active_run()
        if run is not None and hasattr(pool._inqueue, "_writer"):  # a ThreadPool's has none
            guard.guarded("a pool of processes", self._staff, run, pool)
            queue = _Tasks(queue, pool)
        vars(pool)[_TASK_QUEUE] = queue

    def _staff(self, run: Run, pool: Any) -> None:
        if run.session is not None:
            from spanreplay.replayer.schedule.process_queues import route_pool

            route_pool(run, pool)
        setattr(pool._inqueue, _STAFF, _staff(run))


class _Tasks:
    """The queue in which a pool gathers its jobs; each item gets its lane here."""

    def __init__(self, queue: Any, pool: Any) -> None:
        self._queue = queue
        self._pool = weakref.ref(pool)

    def put(self, given: Any) -> None:
        """Add some items, with the object to be told their number; None at the end."""
        run = active_run()
        if run is not None and isinstance(given, tuple):
            items = guard.guarded("the items of a pool", self._name, run, given[0])
            given = given if items is None else (items, *given[1:])
        self._queue.put(given)

    def _name(self, run: Run, items: Iterable[Any]) -> Iterable[Any]:
        owner = current_crossing(run.root_lane)
        lane = current_lane(run.root_lane).child(label_of("px", peel(_giving.function, ())[0]), owner)
        run.share().lanes.append(lane.path)
        number = -1 if owner is None else owner.seq
        return _with_lanes(run, items, lane.path, number, getattr(self._pool(), "_cache", {}))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def _with_lanes(run: Run, items: Iterable[Any], lane: str, owner: int, results: Any) -> Iterator[Any]:
    is_one = isinstance(items, list)
    for job, number, function, args, kwargs in items:
        if getattr(function, "__name__", "") == "_helper_reraises_exception":  # a worker recognises it by identity
            yield job, number, function, args, kwargs
            continue
        path = lane if is_one else f"{lane}/{_ITEM}{number + 1}"
        result = results.get(job)
        if result is not None:
            vars(result).setdefault(_LANES, {})[number] = path
        if run.session is not None and run.process_group is not None:
            run.process_group.state_handed(1)
        yield job, number, Work(function, path, owner), args, kwargs


def _settle(wrapped: Any, result: Any, args: Any, kwargs: Any) -> Any:
    """Note the end of an item's lane when its result is about to be seen."""
    run, lane = active_run(), vars(result).get(_LANES, {}).pop(args[0], None)
    if run is None or lane is None:
        return wrapped(*args, **kwargs)
    number, (is_good, found) = args
    if is_good and type(found) is Missed:
        args = (number, (False, ReplayMiss(found.message)))
    end = LaneEnd(run, lane, is_remote=True)
    end.note()
    try:
        return wrapped(*args, **kwargs)
    finally:
        end.release()
        if run.session is not None and run.process_group is not None:
            run.process_group.state_handed(-1)
