"""Unit: APScheduler. Each execution of a job is its own run, in any scheduler and executor.

In a replay due jobs are not executed: when the scheduler would look for due jobs for the first time, it gets the
recorded one. Meanwhile the program's main thread, or its loop, may still be continuing its start.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import json
import multiprocessing
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard, ids, owners
from spanreplay.model.call import Effect, Kind
from spanreplay.model.lane_names import is_within
from spanreplay.runtime.caller.caller import AGENT, classify, is_among, is_ours
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.lanes import Lane, current_lane, inside_lane
from spanreplay.runtime.run import active_run
from spanreplay.units import factory
from spanreplay.units._table import serves
from spanreplay.units.http_exchange import FIRST_CALL
from spanreplay.units.jobs import (
    Ended,
    is_replay,
    keep_encodable,
    not_here,
    play_job_async,
    record_job,
    record_job_async,
    replay_job,
    replay_jobs_async,
)
from spanreplay.units.play import has_player, plays_jobs
from spanreplay.units.start import has_units
from spanreplay.units.stated import GIVEN, LANE, Start, find_unit
from spanreplay.units.unit_run import UnitRun

if TYPE_CHECKING:
    from spanreplay.runtime.answers import Answers
    from spanreplay.runtime.patches import Patches

_JOB, _SCHEDULED = "job", "scheduled"
_NAME, _FUNCTION, _ARGS, _KWARGS = "name", "function", "args", "kwargs"
_ADDED: Final = ("func", "trigger", _ARGS, _KWARGS, "id", _NAME)
"""Parameters of `add_job` that callers pass by position."""
_NEXT: Final = "next_run_time"


def install(module: Any, patches: Patches) -> None:
    """Patch the schedulers, or the functions that executors call."""
    if module.__name__ == "apscheduler.executors.base":
        # Plain functions under their original names, because pools of processes pickle them
        patches.replace(module, "run_job", _with_units(module.run_job))
        patches.replace(module, "run_coroutine_job", _with_units_async(module.run_coroutine_job))
    elif module.__name__ == "apscheduler.executors.pool":
        patches.wrap(module.ProcessPoolExecutor, "_do_submit_job", _submit)
    else:
        patches.wrap(module.BaseScheduler, "start", _start)
        patches.wrap(module.BaseScheduler, "_process_jobs", _look_for_jobs)
        patches.wrap(module.BaseScheduler, "add_job", _add)
        patches.wrap(module.BaseScheduler, "_real_add_job", _store)


# ── recording ───────────────────────────────────────────────────────────────────────────────────────
class _Execution:
    """Wraps a job so that its function is called as a unit; other attributes are delegated."""

    def __init__(self, job: Any, scheduled: Any, work: Callable[..., Any]) -> None:
        self._job = job
        self.func = functools.partial(work, job, scheduled)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def __str__(self) -> str:
        return str(self._job)


class _RunTimes(list[Any]):
    """The times of a job that is given to a pool of processes, with the start that its units continue from."""

    def __init__(self, run_times: Iterable[Any] = (), start: Start | None = None) -> None:
        super().__init__(run_times)
        self.start = start


def _submit(wrapped: Any, executor: Any, args: Any, kwargs: Any) -> Any:
    """End the program's start before a process of the pool works on the first job."""
    process = factory.offered()
    job, run_times = (lambda job, run_times: (job, run_times))(*args, **kwargs)
    if process is None or is_replay() or not _may_be_unit(job):
        return wrapped(*args, **kwargs)
    guard.guarded("the start of a pool", factory.begin_units)
    if process.start is None:
        return wrapped(*args, **kwargs)
    return wrapped(job, _RunTimes(run_times, process.start))


def _with_units(run_job: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    @functools.wraps(run_job)
    def run(job: Any, alias: Any, run_times: Any, *args: Any) -> list[Any]:
        if multiprocessing.parent_process() is not None:
            if not isinstance(run_times, _RunTimes):  # the pool was not made by a scheduler, or it works for a server
                return run_job(job, alias, run_times, *args)
            guard.guarded("a worker", factory.share_start, run_times.start)
        return [event for at in run_times for event in run_job(_Execution(job, at, _work_on), alias, [at], *args)]

    return run


def _with_units_async(run_job: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run_job)
    async def run(job: Any, alias: Any, run_times: Any, *args: Any) -> list[Any]:
        events: list[Any] = []
        for at in run_times:
            events += await run_job(_Execution(job, at, _work_on_async), alias, [at], *args)
        return events

    return run


def _may_be_unit(job: Any) -> bool:
    """Whether a job may be a unit. In a server, only the first request ends the start.

    A library's own jobs, with which it fetches or reports something from time to time, are part of their process.
    """
    process = factory.offered()
    if process is not None and process.start is None and serves():
        return False
    return _is_agents_job(job)


def _is_agents_job(job: Any) -> bool:
    return _by_agent.get(id(job)) is job or bool(guard.guarded("whose a job is", _is_agents, job.func))


def _is_agents(function: Any) -> bool:
    """Whether a function is the agent's or a framework's; one without Python code may be anybody's."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return code is None or classify(code.co_filename) == AGENT


def _work_on(job: Any, scheduled: Any, *args: Any, **kwargs: Any) -> Any:
    if not _may_be_unit(job):
        return job.func(*args, **kwargs)
    given = functools.partial(_describe_input, job, scheduled)
    return record_job(str(job.name), given, lambda: job.func(*args, **kwargs), _describe_end)


async def _work_on_async(job: Any, scheduled: Any, *args: Any, **kwargs: Any) -> Any:
    if not _may_be_unit(job):
        return await job.func(*args, **kwargs)
    given = functools.partial(_describe_input, job, scheduled)
    return await record_job_async(str(job.name), given, lambda: job.func(*args, **kwargs), _describe_end)


def _describe_input(job: Any, scheduled: Any) -> dict[str, Any]:
    given = {_JOB: job.id, _NAME: job.name, _FUNCTION: job.func_ref, _ARGS: list(job.args), _KWARGS: dict(job.kwargs)}
    return {**keep_encodable(given), _SCHEDULED: scheduled.isoformat()}


def _describe_end(result: Any) -> Ended:
    return Ended({"result": result})


# ── added jobs ──────────────────────────────────────────────────────────────────────────────────────
_APSCHEDULER: Final = (owners.compile_row("apscheduler"),)
_by_agent: Final[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()
"""Jobs that the agent has added in this process, by identity: they are not hashable."""
_is_served: Final[contextvars.ContextVar[bool]] = contextvars.ContextVar("spanreplay_apscheduler", default=False)
"""Whether a job is created only to be returned, not stored."""


def _add(wrapped: Any, scheduler: Any, args: Any, kwargs: Any) -> Any:
    """Record adding a job within a unit as a write: a replay compares it and adds no job."""
    if not _is_in_unit():
        job = wrapped(*args, **kwargs)
        guard.guarded("who adds a job", _note_added, job, sys._getframe(1))
        return job
    made: list[Any] = []

    def add() -> dict[str, Any]:
        made.append(wrapped(*args, **kwargs))
        next_time = getattr(made[0], _NEXT, None)
        return {"id": made[0].id, _NEXT: None if next_time is None else next_time.isoformat()}

    told = call_sync(lambda: _describe_added(args, kwargs), add)
    return made[0] if made else _make_job(lambda: wrapped(*args, **kwargs), told)


def _note_added(job: Any, frame: FrameType | None) -> None:
    """Note a job that the agent or a framework adds in this frame, directly or through APScheduler."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not (is_ours(name) or ids.is_stdlib_file(name) or is_among(name, _APSCHEDULER)):
            if classify(name) == AGENT:
                _by_agent[id(job)] = job
            return
        frame = frame.f_back


def _make_job(make: Callable[[], Any], told: Mapping[str, Any]) -> Any:
    token = set_variable(_is_served, True)
    try:
        job = make()
    finally:
        reset_variable(_is_served, token)
    job.id = told["id"]
    if told[_NEXT] is not None:
        job.next_run_time = datetime.fromisoformat(told[_NEXT])
    return job


def _describe_added(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FunctionCall:
    """Describe the code's arguments; values that the scheduler generates differ each time."""
    named = {**dict(zip(_ADDED, args, strict=False)), **kwargs}
    function, trigger = named.pop("func"), named.pop("trigger", None)
    named[_FUNCTION] = function if isinstance(function, str) else getattr(function, "__qualname__", "")
    named["trigger"] = trigger if trigger is None else str(trigger)
    return FunctionCall(Kind.TOOL.value, "apscheduler.add_job", Effect.WRITE.value, keep_encodable(named), prints=False)


def _store(wrapped: Any, scheduler: Any, args: Any, kwargs: Any) -> Any:
    if not _is_served.get():
        return wrapped(*args, **kwargs)
    named = {**dict(zip(("job", "jobstore_alias"), args, strict=False)), **kwargs}
    named["job"]._jobstore_alias = named["jobstore_alias"]
    return None


def _is_in_unit() -> bool:
    run = active_run()
    if run is None or run.resolver.keeps:
        return isinstance(run, UnitRun)
    extent = run.resolver.answers.extent
    lane = LANE if extent is None else extent.lane
    return is_within(current_lane(run.root_lane).path, lane)


# ── the scheduler ───────────────────────────────────────────────────────────────────────────────────
_BESIDE: Final = "its scheduler works in a thread, beside what the main thread does"
_replaying: Final[list[asyncio.Task[Any]]] = []
"""The task that works on the recorded job; a loop keeps no strong references to tasks."""


_given_away: Final[list[Any]] = []
"""The scheduler whose jobs the server plays."""


def _start(wrapped: Any, scheduler: Any, args: Any, kwargs: Any) -> Any:
    """In a replay, prepare for the recorded jobs: the scheduler plays them, or the server, between its requests."""
    background: Any = import_module("apscheduler.schedulers.background")
    run = active_run()
    session = None if run is None or run.resolver.keeps else run.resolver.answers
    if session is not None and session.extent is not None:
        if _is_for_server(session) and not has_player():
            plays_jobs(functools.partial(_play, scheduler))
            _given_away.append(scheduler)
        is_beside = isinstance(scheduler, background.BackgroundScheduler) and _is_for_scheduler(session)
        session.extent.is_beside_main = session.extent.is_beside_main or is_beside
    return wrapped(*args, **kwargs)


def _look_for_jobs(wrapped: Any, scheduler: Any, args: Any, kwargs: Any) -> Any:
    """The scheduler has started: a replay now runs the recorded jobs, and no other."""
    run = active_run()
    if isinstance(run, UnitRun) and run.resolver.keeps:  # a unit has woken the scheduler; due jobs are no part of it
        with factory.outside_units():
            return wrapped(*args, **kwargs)
    if run is None or run.resolver.keeps or not _is_for_scheduler(run.resolver.answers) or _is_librarys(scheduler):
        return wrapped(*args, **kwargs)
    if serves():
        wrapped(*args, **kwargs)  # run jobs that belong to the start
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        if threading.current_thread() is not threading.main_thread():
            factory.divide(_BESIDE)
        replay_job(lambda given: _find(scheduler, given)(), _describe_end)
    if not _replaying:
        _replaying.append(loop.create_task(replay_jobs_async(functools.partial(_work, scheduler), _describe_end)))
    return None


def _is_librarys(scheduler: Any) -> bool:
    """Whether a scheduler has jobs of libraries only: it works for its process, also in a replay."""
    jobs = scheduler.get_jobs()
    return bool(jobs) and not any(map(_is_agents_job, jobs))


def _is_for_server(session: Answers) -> bool:
    """Whether the server on the running loop plays the units, among which may be both requests and jobs."""
    if not serves() or asyncio._get_running_loop() is None or find_unit(session.recording.root.env) is None:
        return False
    return factory.is_suite() or not _is_job(session) or _has_requests_before(session)


def _is_for_scheduler(session: Answers) -> bool:
    """Whether the scheduler plays the units; its process may have others (requests), a block has none."""
    if find_unit(session.recording.root.env) is None:
        return has_units(session.recording)  # then the replay reports that it is not a unit
    return not _given_away and (_is_job(session) or (factory.is_suite() and not serves()))


def _is_job(session: Answers) -> bool:
    recorded = session.index.at(LANE, GIVEN, 0)
    value = None if recorded is None else json.loads(recorded.response or "{}").get("value")
    return isinstance(value, Mapping) and _JOB in value and _SCHEDULED in value


def _has_requests_before(session: Answers) -> bool:
    """Whether requests to a server of the process are replayed before the judged unit."""
    warm_up = None if session.extent is None else session.extent.warm_up
    units = () if warm_up is None else warm_up.iter_left()
    return any(session.index.at(unit.lane, FIRST_CALL, 0) is not None for unit in units)


async def _play(scheduler: Any, lane: str) -> None:
    """Call the recorded job of a lane in a started server."""
    await play_job_async(lane, functools.partial(_work, scheduler), _describe_end)


async def _work(scheduler: Any, given: Mapping[str, Any]) -> Any:
    call = _find(scheduler, given)
    if inspect.iscoroutinefunction(call):
        return await call()
    lane = Lane(current_lane(Lane(LANE)).path)  # a new one: the pool thread takes this very lane for its own
    return await asyncio.get_running_loop().run_in_executor(None, _call_in, lane, call)


def _call_in(lane: Lane, call: Callable[[], Any]) -> Any:
    """Call a function in the unit's root lane, though on a pool's thread."""
    with inside_lane(lane):
        return call()


def _find(scheduler: Any, given: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a recorded job's call, by function reference, or by matching job if it has no reference."""
    util: Any = import_module("apscheduler.util")
    job = _find_job(scheduler.get_jobs(), given)
    reference = given.get(_FUNCTION)
    try:
        is_here = job is not None and reference in (None, job.func_ref)  # a reference names no object of a method
        function = job.func if is_here else util.ref_to_obj(reference)
    except (LookupError, TypeError) as exc:
        raise not_here(f"the job {given[_NAME]!r} is not here any more: {exc}") from exc
    args = given[_ARGS] if _ARGS in given or job is None else job.args
    kwargs = given[_KWARGS] if _KWARGS in given or job is None else job.kwargs
    return functools.partial(function, *args, **kwargs)


def _find_job(jobs: Iterable[Any], given: Mapping[str, Any]) -> Any:
    """Return the recorded job, by id or, because generated ids may differ, by name and function; None if not here."""
    named = None
    for job in jobs:
        if job.id == given[_JOB]:
            return job
        if named is None and (job.name, job.func_ref) == (given[_NAME], given.get(_FUNCTION)):
            named = job
    return named
