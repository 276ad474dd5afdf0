"""Jobs of workers: each task or job that a worker calls, with its arguments and result or exception, is a unit.

    compute:input    (read)   the worker's input; a replay passes it to the job again
    compute:output   (write)  the result, the exception or the retry; compared

A worker's row says where the call happens, what its input is, and how to describe its result.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from spanreplay import codec
from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind, Outcome
from spanreplay.model.errors import ReplayMiss, Unserializable
from spanreplay.runtime.caller.running import within_unit
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async, call_sync
from spanreplay.runtime.lanes import Lane, inside_lane
from spanreplay.runtime.run import Run, active_run
from spanreplay.units import caller, factory
from spanreplay.units.given import keep_output, put_input
from spanreplay.units.play import UNITS_APART, end_replay, is_replay, iter_units
from spanreplay.units.start import await_start
from spanreplay.units.stated import GIVEN, LANE, find_unit
from spanreplay.units.under_way import UnderWay, open_under_way

__all__ = [
    "Ended",
    "await_input",
    "describe_exception",
    "end_job",
    "find_replay_of_job",
    "is_replay",
    "keep_encodable",
    "make_left_to_worker",
    "not_here",
    "note_input",
    "note_output",
    "play_job_async",
    "record_job",
    "record_job_async",
    "replay_job",
    "replay_jobs_async",
    "take_input",
    "work_job_async",
]

T = TypeVar("T")
INPUT, OUTPUT = "input", "output"
_KIND: Final = Kind.COMPUTE.value


def make_left_to_worker(told: ContextVar[Any]) -> Callable[..., Any]:
    """Return a wrapper for functions with which a worker itself stores or acknowledges during a job.

    Those calls are not part of the job, and a replay skips them. `told` is set while the worker works on a job.
    """

    def leave(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if told.get() is None:
            return wrapped(*args, **kwargs)
        if is_replay():
            return None
        with factory.outside_units():
            return wrapped(*args, **kwargs)

    return leave


class Ended(NamedTuple):
    """How a job ended: its recorded output, and the outcome of its run."""

    output: Mapping[str, Any]
    outcome: Outcome = Outcome.OK


def describe_exception(exc: BaseException) -> dict[str, str]:
    """Return the type and message of an exception that a job raised."""
    return {"type": f"{type(exc).__module__}.{type(exc).__qualname__}", "message": str(exc)}


def not_here(why: str) -> ReplayMiss:
    """Return the error for a replay in which the program no longer has the recorded job."""
    run = active_run()
    return ReplayMiss(why) if run is None else run.resolver.broken(why)


def keep_encodable(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that can be recorded; the others belong to the worker: connections, callbacks."""
    kept: dict[str, Any] = {}
    for name, value in given.items():
        with contextlib.suppress(Unserializable):
            codec.encode(value)
            kept[str(name)] = value
    return kept


def record_job(
    name: str,
    given: Callable[[], Mapping[str, Any]],
    work: Callable[[], T],
    describe: Callable[[T], Ended],
    headers: Mapping[str, Any] | None = None,
    *,
    user: str = "",
    session: str = "",
) -> T:
    """Do a job as its own run; `headers` of its message may name user, session and trace."""
    unit = open_under_way(name, user, session)
    if unit is None:
        return work()
    with _noted(unit, given, headers):
        result = work()
        _note_end(unit, describe, result)
    return result


async def record_job_async(
    name: str,
    given: Callable[[], Mapping[str, Any]],
    work: Callable[[], Awaitable[T]],
    describe: Callable[[T], Ended],
    headers: Mapping[str, Any] | None = None,
    *,
    user: str = "",
    session: str = "",
) -> T:
    """Do an asynchronous job as its own run; see `record_job`."""
    unit = open_under_way(name, user, session)
    if unit is None:
        return await work()
    with _noted(unit, given, headers):
        result = await work()
        _note_end(unit, describe, result)
    return result


@contextlib.contextmanager
def _noted(unit: UnderWay, given: Callable[[], Mapping[str, Any]], headers: Mapping[str, Any] | None) -> Iterator[None]:
    """A block for a unit that notes its input first, and any exception raised in the block."""
    with unit:
        told = {name: (headers or {}).get(name) for name in caller.find_names()}
        named = [
            (name.encode(), value.encode("latin-1", "replace"))
            for name, value in told.items()
            if isinstance(value, str)
        ]
        guard.guarded("headers", caller.look_at_caller, unit.run, named, given)
        unit.note(lambda: note_input(given()))
        try:
            yield
        except BaseException as exc:
            raised = describe_exception(exc)
            unit.note(lambda: note_output({"raised": raised}))
            raise


def _note_end(unit: UnderWay, describe: Callable[[T], Ended], result: T) -> None:
    def note_end() -> None:
        ended = describe(result)
        unit.outcome = ended.outcome
        note_output(ended.output)

    unit.note(note_end)


def note_input(given: Mapping[str, Any]) -> Any:
    """Record the current unit's input."""
    return call_sync(lambda: FunctionCall(_KIND, INPUT, Effect.READ.value, {}, prints=False), lambda: given)


def note_output(output: Mapping[str, Any]) -> None:
    """Record the current unit's output; a replay compares it."""
    keep_output(output)
    call_sync(lambda: FunctionCall(_KIND, OUTPUT, Effect.WRITE.value, output, prints=False), lambda: None)


def _no_input() -> Any:
    raise ReplayMiss("a job can't come in live")


async def _no_input_async() -> Mapping[str, Any]:
    raise ReplayMiss("a job can't come in live")


def find_replay_of_job() -> Run:
    """Return the run of a job's or cell's replay; end the replay if the recording is a process's, not a unit's."""
    run = active_run()
    if run is None:
        raise AssertionError("only a replay plays a job")
    answers = run.resolver.answers
    if find_unit(answers.recording.root.env) is None:
        answers.stop(UNITS_APART)
        end_replay()
    return run


async def await_input() -> Mapping[str, Any]:
    """Return the input of the recorded job in the current lane. Raises: ReplayMiss."""
    function_call = FunctionCall(_KIND, INPUT, Effect.READ.value, {}, prints=False)
    return put_input(await call_async(lambda: function_call, _no_input_async))


def take_input() -> Mapping[str, Any]:
    """Synchronous `await_input`. Raises: ReplayMiss."""
    return put_input(call_sync(lambda: FunctionCall(_KIND, INPUT, Effect.READ.value, {}, prints=False), _no_input))


async def replay_jobs_async(
    work: Callable[[Mapping[str, Any]], Awaitable[T]], describe: Callable[[T], Ended]
) -> NoReturn:
    """Replay warm-up jobs and the recorded job in a started worker on a loop; end the process."""
    run = find_replay_of_job()
    with contextlib.suppress(ReplayMiss):  # the session has noted it
        await await_start(run)
        for lane in iter_units(run, GIVEN):
            with within_unit():
                task = asyncio.create_task(play_job_async(lane, work, describe))  # a task has its own context
            await task
    end_replay()


async def play_job_async(
    lane: str, work: Callable[[Mapping[str, Any]], Awaitable[T]], describe: Callable[[T], Ended]
) -> None:
    """Replay the recorded job of a lane and compare its output; call it in a task of its own."""
    with contextlib.suppress(ReplayMiss), inside_lane(Lane(lane)):  # the session has noted it
        given = await await_input()
        await work_job_async(lane, lambda: work(given), describe)


async def work_job_async(lane: str, work: Callable[[], Awaitable[T]], describe: Callable[[T], Ended]) -> None:
    """Work on a recorded job whose input has been taken, and compare its output."""
    run = find_replay_of_job()
    with contextlib.suppress(ReplayMiss), inside_lane(Lane(lane)):  # the session has noted it
        try:
            output = describe(await work()).output
        except (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt) as exc:  # noqa: BLE001 -- the worker's
            output = {"raised": describe_exception(exc)}
        end_job(run, lane, output)


def replay_job(work: Callable[[Mapping[str, Any]], Any], describe: Callable[[Any], Ended]) -> NoReturn:
    """Replay warm-up jobs and the recorded job in a started worker; end the process."""
    run = find_replay_of_job()
    with contextlib.suppress(ReplayMiss):  # the session has noted it
        factory.end_start(run)
        for lane in iter_units(run, GIVEN):
            with contextlib.suppress(ReplayMiss), inside_lane(Lane(lane)):
                given = take_input()
                try:
                    output = describe(work(given)).output
                except (Exception, SystemExit, KeyboardInterrupt) as exc:  # noqa: BLE001 -- the worker would get it
                    output = {"raised": describe_exception(exc)}
                end_job(run, lane, output)
    end_replay()


def end_job(run: Run, lane: str, output: Mapping[str, Any]) -> None:
    """Compare a job's output. Raises: ReplayMiss."""
    note_output(output)
    extent = run.resolver.answers.extent
    if lane == LANE and extent is not None:
        extent.is_over = True
