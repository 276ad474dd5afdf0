"""Seam: pools of processes, `concurrent.futures.ProcessPoolExecutor` and `multiprocessing.Pool`.

A pool's workers are not lanes: their jobs have the lane of the `submit`, `map`, `apply_async` and so on, and each item
of a `Pool` one below. A recording keeps which worker takes which item; what a replay does about it is in
`replayed_pools.py`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime import worker_end
from spanreplay.runtime.lanes import current_crossing, current_lane, label_of, peel
from spanreplay.runtime.order.lane_end import LaneEnd
from spanreplay.runtime.order.lane_futures import adopt_future, hash_lane, when_told
from spanreplay.runtime.order.pool_items import STAFF, Missed, Staff, Work, here
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.processes import JoinToken
from spanreplay.runtime.run import Run, active_run

_LANES: Final = "_spanreplay_lanes"
"""Attribute of the object that receives results of a pool's items: number of an item → lane."""
_KILLED: Final = "_spanreplay_killed"
"""Attribute of a process: whether it is the worker of a pool that kills it at its end."""
_TASK_QUEUE: Final = "_taskqueue"
_ITEM: Final = "px:item#"


def install(module: Any, patches: Patches) -> None:
    """Patch `concurrent.futures.process` or `multiprocessing.pool`."""
    if module.__name__ == "multiprocessing.pool":
        _install_pool(module, patches)
        return
    patches.wrap(module.ProcessPoolExecutor, "__init__", _make_executor)
    patches.wrap(module.ProcessPoolExecutor, "submit", _submit)


# ── workers ─────────────────────────────────────────────────────────────────────────────────────────
def hire(process: Any) -> tuple[str, int] | None:
    """Lane and number of a pool's worker that is about to be started; None for any other process."""
    given: tuple[Any, ...] = getattr(process, "_args", ())
    staff: Staff | None = getattr(given[0], STAFF, None) if given else None
    if staff is None:
        return None
    lane, number = staff.hire()
    vars(process)[_KILLED] = _is_killed(process)
    hire_worker = getattr(given[0], "hire", None)
    if hire_worker is not None:  # the items of a replay, which have a queue for each worker
        process._args = (hire_worker(number, process), *given[1:])
    return lane, number


def _is_killed(process: Any) -> bool:
    """Whether a worker's pool kills it at its end."""
    return getattr(process._target, "__name__", "") != "_process_worker"


def _staff_queue(run: Run, queue: Any) -> None:
    """Note that a queue is the one from which a new pool's workers take items."""
    setattr(queue, STAFF, Staff(current_lane(run.root_lane).child("pool").path))


def enter(run: Run, process: Any, number: int) -> None:
    """Become a worker, in a process that was just started."""
    here.number, here.is_of_pool = number, _is_killed(process)
    if here.is_of_pool and run.process_group is not None:
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
    worker_end.ask(shared, join_token.number, process, run.order.report_s_max)


# ── concurrent.futures ──────────────────────────────────────────────────────────────────────────────
def _make_executor(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    run = active_run()
    if run is not None:
        guard.guarded("a pool of processes", _staff_queue, run, pool._call_queue)


def _submit(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    if run is None or not args:
        return wrapped(*args, **kwargs)
    function, *rest = args
    owner = current_crossing(run.root_lane)
    lane = current_lane(run.root_lane).child(label_of("px", peel(function, tuple(rest))[0]), owner)
    run.share().lanes.append(lane.path)
    work = Work(function, lane.path, -1 if owner is None else owner.seq)
    future = wrapped(work, *rest, **kwargs)
    adopt_future(future, hash_lane(lane.number, lane.path), LaneEnd(run, lane.path, is_remote=True))
    run.order.count_handed(1)
    when_told(future, lambda: run.order.count_handed(-1))
    return future


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
    patches.replace(module.Pool, _TASK_QUEUE, _TaskQueue(module.ThreadPool))


def _give(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    before, _giving.function = _giving.function, args[0] if args else kwargs.get("func")
    try:
        return wrapped(*args, **kwargs)
    finally:
        _giving.function = before


class _TaskQueue:
    """Replaces a pool's attribute that is set after its other queues and before its workers are started."""

    def __init__(self, thread_pool: type) -> None:
        self._thread_pool = thread_pool

    def __get__(self, pool: Any, owner: Any = None) -> Any:
        return self if pool is None else vars(pool)[_TASK_QUEUE]

    def __set__(self, pool: Any, queue: Any) -> None:
        run = active_run()
        if run is not None and not isinstance(pool, self._thread_pool):
            guard.guarded("a pool of processes", _staff_queue, run, pool._inqueue)
            queue = _Tasks(queue, pool)
        vars(pool)[_TASK_QUEUE] = queue


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
        run.order.count_handed(1)
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
        run.order.count_handed(-1)
