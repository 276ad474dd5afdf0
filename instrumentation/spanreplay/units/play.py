"""Replays units in their server's process, then ends it: the recording has nothing else for it to serve."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final, NoReturn

from spanreplay.model import guard
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.caller.running import within_unit
from spanreplay.runtime.run import Run, active_run
from spanreplay.seams.machine.reads_and_files import begin_files
from spanreplay.units import factory
from spanreplay.units.asgi import App, replay_request
from spanreplay.units.http_exchange import FIRST_CALL
from spanreplay.units.start import await_start
from spanreplay.units.stated import GIVEN, LANE, find_unit
from spanreplay.units.wsgi import WsgiApp
from spanreplay.units.wsgi_replay import replay_wsgi_request

_leave = os._exit
_players: list[Callable[[str], Coroutine[Any, Any, None]]] = []
_waiting: list[str] = []
_abandoned: Final[set[asyncio.Task[None]]] = set()
UNITS_APART: Final = "from here on the process works on units, which are runs of their own: each replays by itself"


def plays_jobs(player: Callable[[str], Coroutine[Any, Any, None]], *waiting: str) -> None:
    """Register the player of recorded jobs in a program that serves requests and works on jobs beside them.

    `waiting` are the reasons of recordings that are incomplete because their request waits for such jobs. As an earlier
    unit of a warm-up such a request would wait forever, so it is left out.
    """
    _players[:] = [player]
    _waiting[:] = waiting


def has_player() -> bool:
    """Whether the server plays recorded jobs, too."""
    return bool(_players)


async def play(app: App, state: dict[str, Any] | None) -> None:
    """Replay the recorded request in a started application; stop the replay if the recording is not a unit's."""
    await play_each(partial(replay_request, app, state))


async def play_each(replay: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Like `play`, for servers that call applications differently: `replay` passes the request to one."""
    run = _find_replay_of_unit()
    if run is None:
        return
    if not _players and _has_come_otherwise(run):
        await asyncio.Event().wait()
    try:
        await await_start(run)
    except ReplayMiss:
        return  # the session has noted it
    first_calls = (FIRST_CALL, GIVEN) if _players else (FIRST_CALL,)
    for lane in iter_units(run, *first_calls):
        is_job = bool(_players) and run.resolver.answers.index.at(lane, FIRST_CALL, 0) is None
        with within_unit():
            task = asyncio.create_task(_players[0](lane) if is_job else replay())  # a task has its own context
        await (task if lane == LANE else _await_earlier(task, run))


async def _await_earlier(task: asyncio.Task[None], run: Run) -> None:
    """Wait for an earlier unit; one that turns out to wait for something later stays as it is, like a background task.

    So does the stream of a session that only a later request ends.
    """
    from spanreplay.replayer.schedule.worker_watch import abandoning  # not loaded while recording

    loop = asyncio.get_running_loop()
    is_stuck = loop.create_future()

    def abandon() -> bool:
        if task in _abandoned or task.done():
            return False
        _abandoned.add(task)
        loop.call_soon_threadsafe(is_stuck.set_result, None)
        return True

    with abandoning(abandon, run.resolver.answers.gate):
        await asyncio.wait((task, is_stuck), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task


def play_wsgi(app: WsgiApp) -> NoReturn:
    """Like `play`, for a WSGI application; ends the process."""
    run = _find_replay_of_unit()
    if run is not None:
        if _has_come_otherwise(run):
            threading.Event().wait()
        with contextlib.suppress(ReplayMiss):  # the session has noted it
            factory.end_start(run)
            for _ in iter_units(run, FIRST_CALL):
                with within_unit():  # the thread may be one that a server started for itself
                    replay_wsgi_request(app)
    end_replay()


def is_replay() -> bool:
    """Whether this process is replaying: it opens no port and starts no worker."""
    run = active_run()
    return run is not None and not run.resolver.keeps


def is_replay_of_unit() -> bool:
    """Whether this process replays a unit; a script that also serves may be replayed without one."""
    run = active_run()
    return run is not None and not run.resolver.keeps and find_unit(run.resolver.answers.recording.root.env) is not None


def hold_main() -> None:
    """If a thread other than the main one serves, stop the main thread where the unit's recording ends.

    The main thread may wait for its own server, or send it requests: that belongs to the run of the process.
    """
    run = active_run()
    is_elsewhere = threading.current_thread() is not threading.main_thread()
    if is_elsewhere and is_replay_of_unit() and run is not None:
        extent = run.resolver.answers.extent
        if extent is not None:
            extent.is_beside_main = True


def stop_beside_main() -> None:
    """In the replay of a process itself, end its recording as soon as a thread beside the main one serves.

    The main thread may send a request to its own server next, which nobody answers in a replay.
    """
    run = active_run()
    is_elsewhere = threading.current_thread() is not threading.main_thread()
    if is_elsewhere and run is not None and is_replay() and not is_replay_of_unit():
        run.resolver.answers.stop(UNITS_APART)


def _find_replay_of_unit() -> Run | None:
    run = active_run()
    if run is None:
        raise AssertionError("only a replay plays a unit")
    answers = run.resolver.answers
    hold_main()
    if not is_replay_of_unit():
        answers.stop(UNITS_APART)
        return None
    reasons = answers.recording.completeness().reasons
    awaited = next((reason for reason in reasons if reason in _waiting), None)
    if awaited is not None:
        answers.stop(awaited)
        return None
    return run


def _has_come_otherwise(run: Run) -> bool:
    """Whether the judged unit is a job of the same process, not a request to the server."""
    return run.resolver.answers.index.at(LANE, GIVEN, 0) is not None


def iter_units(run: Run, *first_calls: str) -> Iterator[str]:
    """Yield the root lane of each unit to replay in a started program; the judged unit comes last.

    The caller replays the unit before it asks for the next lane; its end is noted then. Warm-up units whose first call
    is not one of `first_calls` entered the process another way, and are skipped.
    """
    factory.divide()
    session = run.resolver.answers
    if session.extent is None:
        raise AssertionError("only a replay plays a unit")
    warm_up = session.extent.warm_up
    if warm_up is not None:
        for unit in warm_up.iter_left():
            if unit.is_left_out or any(reason in unit.reason for reason in _waiting):
                unit.why = unit.reason
                continue
            is_ours = any(session.index.at(unit.lane, each, 0) is not None for each in first_calls)
            if is_ours and warm_up.claim(unit):
                warm_up.begin(unit, run)
                begin_files(run)
                yield unit.lane
                warm_up.end(unit, run)
        warm_up.begin_judged(run)
        begin_files(run)
    yield session.extent.lane


def end_replay() -> NoReturn:
    """State the verdict and end the process."""
    process = factory.offered()
    if process is not None and process.finish is not None:
        guard.guarded("the end of the replay", process.finish, 0)
    for stream in (sys.stdout, sys.stderr):
        guard.guarded("standard output", stream.flush)
    _leave(0)
