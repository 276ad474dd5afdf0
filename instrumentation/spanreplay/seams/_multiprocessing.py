"""Seam: processes of `multiprocessing`, and process pools. Their calls are part of the run that started them.

A process is a lane below the one that starts it, however it is started (fork, spawn, forkserver). A pool's workers are
none: what they work on has the lane of its `submit`. What comes back from a pool comes, in a replay, in the recorded
order: the worker holds its result back until the one before it has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spanreplay import family, guard, ids
from spanreplay._patch import Patches
from spanreplay.family import Family, RemoteCrossing, Ticket
from spanreplay.lane_end import LaneEnd
from spanreplay.lane_order import adopt_future, when_told
from spanreplay.lanes import Lane, _peel, current_crossing, current_lane, inside_lane, label_of
from spanreplay.run import Run, active_run, set_process_run

_TICKET = "_spanreplay_ticket"
_POOL = "multiprocessing.pool"


def install(module: Any, patches: Patches) -> None:
    """Patch `multiprocessing.process`, or `concurrent.futures.process`."""
    if module.__name__ == "multiprocessing.connection":
        for name in ("recv", "recv_bytes", "poll"):
            patches.wrap(module._ConnectionBase, name, _wait)
        return
    if module.__name__ == "multiprocessing.util":
        patches.wrap(module, "spawnv_passfds", _spawn_helper)
        return
    if module.__name__ == "multiprocessing.process":
        patches.wrap(module.BaseProcess, "start", _start)
        patches.wrap(module.BaseProcess, "_bootstrap", _bootstrap)
        patches.wrap(module.BaseProcess, "join", _join)
        return
    patches.wrap(module.ProcessPoolExecutor, "submit", _submit)
    patches.wrap(module, "_sendback_result", _send_back)


def _start(wrapped: Any, process: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    if run is None or getattr(process, "_popen", None) is not None:
        return wrapped(*args, **kwargs)
    ticket = guard.guarded("a new process", _issue, run, process)
    if ticket is None:
        run.hole(f"a process was started at {ids.find_caller(2)}: its calls are not in this run")
        return wrapped(*args, **kwargs)
    process.__dict__[_TICKET] = ticket
    with family.handing_over(ticket):
        _state_starting(run, ticket, True)
        try:
            return wrapped(*args, **kwargs)
        except BaseException:
            _state_starting(run, ticket, False)
            raise


def _state_starting(run: Run, ticket: Ticket, is_starting: bool) -> None:
    """In a replay, let nobody give up what a process that is on its way may bring."""
    if run.session is not None and run.family is not None:
        run.family.state_starting(ticket.number, is_starting)


def _spawn_helper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """A process of multiprocessing's own: one that cleans up is none of ours, a forkserver has to know the run."""
    run = active_run()
    command = " ".join(map(str, args[1])) if len(args) > 1 else ""
    if run is None:
        return wrapped(*args, **kwargs)
    if "resource_tracker" in command:
        with family.switched_off():
            return wrapped(*args, **kwargs)
    if "forkserver import main" in command:
        with family.handing_over(_ticket(run, run.share(), f"{run.root_lane.path}/forkserver", is_helper=True)):
            return wrapped(*args, **kwargs)
    return wrapped(*args, **kwargs)


def _ticket(run: Run, shared: Family, lane: str, **fields: Any) -> Ticket:
    return Ticket(
        folder=str(shared.folder),
        run_id=run.run_id,
        lane=lane,
        number=shared.new_number(),
        trace_id=f"{run.span_context.trace_id:032x}",
        span_id=f"{run.span_context.span_id:016x}",
        **fields,
    )


def _issue(run: Run, process: Any) -> Ticket:
    """The ticket of a process that is about to be started."""
    shared = run.share()
    parent = current_lane(run.root_lane)
    owner = current_crossing(run.root_lane)
    target = getattr(process, "_target", None)
    is_worker = getattr(target, "__name__", "") == "_process_worker"
    if is_worker:  # when a pool starts one depends on timing
        path = f"{run.root_lane.path}/pool"
    else:
        work = type(process) if target is None else _peel(target, getattr(process, "_args", ()))[0]
        path = parent.child(label_of("p", work), owner).path
        shared.lanes.append(path)
    ticket = _ticket(
        run,
        shared,
        path,
        owner=-1 if owner is None else owner.seq,
        place=ids.find_caller(3),
        is_worker=is_worker,
        takes_any=getattr(target, "__module__", "") == _POOL,
    )
    shared.tickets.append(ticket)
    return ticket


def _bootstrap(wrapped: Any, process: Any, args: Any, kwargs: Any) -> Any:
    """What a new process does from its first to its last moment."""
    ticket = process.__dict__.get(_TICKET)
    run: Run | None = family.candidate
    if ticket is None or run is None:
        return wrapped(*args, **kwargs)
    guard.guarded("joining a run", _enter, run, ticket)
    try:
        return wrapped(*args, **kwargs)
    finally:
        guard.guarded("the end of a process", run.finish)


def _enter(run: Run, ticket: Ticket) -> None:
    if not run.has_joined:
        run.join(ticket)
    set_process_run(run)


def _wait(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """In a replay, say that this thread waits for another process."""
    run = active_run()
    if run is None or run.session is None:
        return wrapped(*args, **kwargs)
    with run.session.gate.crew.waiting_elsewhere():
        return wrapped(*args, **kwargs)


def _join(wrapped: Any, process: Any, args: Any, kwargs: Any) -> Any:
    """The same for a process that is waited for; one that has ended does nothing more, however it did."""
    result = _wait(wrapped, process, args, kwargs)
    run, ticket = active_run(), process.__dict__.get(_TICKET)
    if run is not None and ticket is not None and process.exitcode is not None:
        _state_starting(run, ticket, False)
    return result


# ── pools ───────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Work:
    """What a pool's worker is given: a function, and the lane that it runs in."""

    function: Any
    lane: str
    owner: int

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function in its lane."""
        global _lane_done
        run = active_run()
        if run is None:
            return self.function(*args, **kwargs)
        _lane_done = self.lane
        if run.session is not None:
            run.session.gate.crew.started()
        parent = RemoteCrossing(self.owner, run.root_lane) if self.owner >= 0 else None
        if run.family is not None:
            run.family.lanes_here.append(self.lane)
        with inside_lane(Lane(self.lane, parent)):
            return self.function(*args, **kwargs)


_lane_done = ""
"""The lane whose result the worker sends back next."""


def _submit(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    if run is None or not args:
        return wrapped(*args, **kwargs)
    function, *rest = args
    owner = current_crossing(run.root_lane)
    lane = current_lane(run.root_lane).child(label_of("px", _peel(function, tuple(rest))[0]), owner)
    shared: Family = run.share()
    shared.lanes.append(lane.path)
    work = Work(function, lane.path, -1 if owner is None else owner.seq)
    future = wrapped(work, *rest, **kwargs)
    adopt_future(future, lane.number, LaneEnd(run, lane.path, is_remote=True))
    if run.session is not None:
        shared.state_handed(1)
        when_told(future, lambda: shared.state_handed(-1))
    return future


def _send_back(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    global _lane_done
    run, lane = active_run(), _lane_done
    if run is None or run.session is None or not lane:
        return wrapped(*args, **kwargs)
    _lane_done = ""
    gate = run.session.gate
    gate.wait_turn(gate.lane_ends.get(lane, -1))
    try:
        return wrapped(*args, **kwargs)
    finally:
        gate.crew.ended()
