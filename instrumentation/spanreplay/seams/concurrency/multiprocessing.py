"""Seam: processes of `multiprocessing`. Their calls are part of the run that started them.

A process is a lane below the one that starts it, however it is started (fork, spawn, forkserver); for the workers of
pools see `process_pools.py`.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Final

from spanreplay.model import guard, ids
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime import processes as process_group
from spanreplay.runtime import worker_end
from spanreplay.runtime.lanes import current_crossing, current_lane, label_of, peel
from spanreplay.runtime.order.pool_items import JOIN_TOKEN
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.termination import Termination
from spanreplay.runtime.processes import JoinToken, ProcessGroup
from spanreplay.runtime.run import Run, active_run, set_process_run
from spanreplay.seams.concurrency import process_meetings
from spanreplay.seams.concurrency import process_pools as _process_pools

_ARGV_CHARACTERS_MAX: Final = 8_000


def install(module: Any, patches: Patches) -> None:
    """Patch a module of `multiprocessing`."""
    if module.__name__.rpartition(".")[2] in ("connection", "queues", "synchronize"):
        process_meetings.install(module, patches)
        return
    if module.__name__ == "multiprocessing.util":
        patches.wrap(module, "spawnv_passfds", _spawn_helper)
        patches.wrap(module, "_exit_function", _exit)
        return
    if module.__name__ == "multiprocessing.process":
        patches.wrap(module.BaseProcess, "start", _start)
        patches.wrap(module.BaseProcess, "_bootstrap", _bootstrap)
        patches.wrap(module.BaseProcess, "join", _join)
        patches.wrap(module.BaseProcess, "terminate", _terminate)
        return
    _process_pools.install(module, patches)


def _start(wrapped: Any, process: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    if run is None or getattr(process, "_popen", None) is not None:
        return wrapped(*args, **kwargs)
    join_token = guard.guarded("a new process", _issue, run, process)
    if join_token is None:
        run.hole(f"a process was started at {ids.find_caller(2)}: its calls are not in this run")
        return wrapped(*args, **kwargs)
    process.__dict__[JOIN_TOKEN] = join_token
    with process_group.handing_over(join_token), run.order.starting(join_token.number, process):
        wrapped(*args, **kwargs)
    return None


def _spawn_helper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Start a helper of multiprocessing: the resource tracker is not recorded, a forkserver gets a join token."""
    run = active_run()
    command = " ".join(map(str, args[1])) if len(args) > 1 else ""
    if run is None:
        return wrapped(*args, **kwargs)
    if "resource_tracker" in command:
        with process_group.switched_off():
            return wrapped(*args, **kwargs)
    if "forkserver import main" in command:
        with process_group.handing_over(
            _join_token(run, run.share(), f"{run.root_lane.path}/forkserver", is_helper=True)
        ):
            return wrapped(*args, **kwargs)
    return wrapped(*args, **kwargs)


def _join_token(run: Run, shared: ProcessGroup, lane: str, **fields: Any) -> JoinToken:
    argv = list(run.environment.get("argv") or ())
    return JoinToken(
        folder=str(shared.folder),
        run_id=run.run_id,
        lane=lane,
        number=shared.new_number(),
        trace_id=f"{run.span_context.trace_id:032x}",
        span_id=f"{run.span_context.span_id:016x}",
        argv=argv if sum(map(len, argv)) <= _ARGV_CHARACTERS_MAX else (),  # an environment variable has a limited size
        **fields,
    )


def _issue(run: Run, process: Any) -> JoinToken:
    """The join token of a process that is about to be started."""
    shared = run.share()
    parent = current_lane(run.root_lane)
    owner = current_crossing(run.root_lane)
    target = getattr(process, "_target", None)
    worker = _process_pools.hire(process)
    if worker is not None:  # when a pool starts a worker depends on timing
        path = worker[0]
    else:
        work = type(process) if target is None else peel(target, getattr(process, "_args", ()))[0]
        path = parent.child(label_of("p", work), owner).path
        shared.lanes.append(path)
    join_token = _join_token(
        run,
        shared,
        path,
        owner=-1 if owner is None else owner.seq,
        place=ids.find_caller(3),
        worker=-1 if worker is None else worker[1],
    )
    shared.join_tokens.append(join_token)
    return join_token


def _bootstrap(wrapped: Any, process: Any, args: Any, kwargs: Any) -> Any:
    """Run a new process's code from its first to its last moment, as part of the run."""
    join_token = process.__dict__.get(JOIN_TOKEN)
    run: Run | None = process_group.candidate
    if join_token is None or run is None:
        return wrapped(*args, **kwargs)
    _leaving.has_exited, _leaving.run = False, None
    guard.guarded("joining a run", _enter, run, join_token, process)
    try:
        return wrapped(*args, **kwargs)
    finally:
        if _leaving.has_exited:
            worker_end.finish(run)
        else:
            _leaving.run = run


class _Leaving:
    """How far the end of this process, which another one has started, has come."""

    has_exited = False
    """Whether it has waited for its queues and processes. Since Python 3.13 it does so after `_bootstrap`."""
    run: Run | None = None
    """The run that ends in it then."""


_leaving: Final = _Leaving()


def _exit(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """`_exit_function`: sends the items put in queues. In a spawned process the run ends with the process."""
    try:
        return wrapped(*args, **kwargs)
    finally:
        _leaving.has_exited = True
        run, _leaving.run = _leaving.run, None
        if run is not None:
            worker_end.finish(run)


def _is_at_exit() -> bool:
    """Whether the end of the interpreter waits for a process."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "_exit_function":
            return True
        frame = frame.f_back
    return False


def _enter(run: Run, join_token: JoinToken, process: Any) -> None:
    if not run.has_joined:
        run.join(join_token)
    set_process_run(run)
    Termination.leave_to_system()
    if join_token.is_worker:
        _process_pools.enter(run, process, join_token.worker)


def _terminate(wrapped: Any, process: Any, args: Any, kwargs: Any) -> Any:
    run, join_token = active_run(), process.__dict__.get(JOIN_TOKEN)
    if run is not None and join_token is not None and join_token.is_worker:
        guard.guarded("the end of a process", _process_pools.state_before_end, run, process, join_token)
    return wrapped(*args, **kwargs)


def _join(wrapped: Any, process: Any, args: Any, kwargs: Any) -> Any:
    """Wait for a process, and note its end; one that has ended, in whatever way, does nothing more."""
    run, join_token = active_run(), process.__dict__.get(JOIN_TOKEN)
    if run is None:
        return wrapped(*args, **kwargs)
    timeout = args[0] if args else kwargs.get("timeout")

    def has_ended(seconds: float) -> bool:
        wrapped(seconds)
        return process.exitcode is not None

    try:
        run.order.wait_elsewhere(
            lambda: wrapped(*args, **kwargs), has_ended if timeout is None and join_token else None
        )
    except ReplayMiss:
        if not _is_at_exit():
            raise
        process.kill()  # nobody else can end it
        wrapped(*args, **kwargs)
    if join_token is not None and process.exitcode is not None:
        run.order.see_end(join_token.number)
    return None
