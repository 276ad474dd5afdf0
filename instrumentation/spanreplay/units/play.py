"""Replays units in the process of their server, and ends the process: what else it serves is not in the recording."""

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
UNITS_APART: Final = "from here on the process works on units, which are runs of their own: each replays by itself"


def plays_jobs(player: Callable[[str], Coroutine[Any, Any, None]], *waiting: str) -> None:
    """Register the player of recorded jobs in a program that serves requests and works on jobs beside them.

    `waiting` are the reasons of recordings that are incomplete because their request waits for such jobs. As an earlier
    unit of a warm-up such a request would wait forever, so it is left out.
    """
    _players[:] = [player]
    _waiting[:] = waiting


async def play(app: App, state: dict[str, Any] | None) -> None:
    """Give the recorded request to an application that has started; a recording that is no unit ends here."""
    await play_each(partial(replay_request, app, state))


async def play_each(replay: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """The same for a server whose applications are called in another way: `replay` gives the request to one."""
    run = _find_replay_of_unit()
    if run is None:
        return
    if not _players and _has_come_otherwise(run):
        await asyncio.Event().wait()
    try:
        await await_start(run)
    except ReplayMiss:
        return  # the session knows
    first_calls = (FIRST_CALL, GIVEN) if _players else (FIRST_CALL,)
    for lane in iter_units(run, *first_calls):
        is_job = bool(_players) and run.session is not None and run.session.index.at(lane, FIRST_CALL, 0) is None
        with within_unit():
            task = asyncio.create_task(_players[0](lane) if is_job else replay())  # in a context of its own
        await task


def play_wsgi(app: WsgiApp) -> NoReturn:
    """The same for a WSGI application; the process ends."""
    run = _find_replay_of_unit()
    if run is not None:
        if _has_come_otherwise(run):
            threading.Event().wait()
        with contextlib.suppress(ReplayMiss):  # the session knows
            factory.end_start(run)
            for _ in iter_units(run, FIRST_CALL):
                replay_wsgi_request(app)
    end_replay()


def is_replay() -> bool:
    """Whether this process is one of a replay: it opens no port, and starts no worker."""
    run = active_run()
    return run is not None and run.session is not None


def is_replay_of_unit() -> bool:
    """Whether it replays a unit; a script that also serves may be replayed without one."""
    run = active_run()
    return run is not None and run.session is not None and find_unit(run.session.recording.root.env) is not None


def hold_main() -> None:
    """Where another thread than the main one serves, that one goes no further than the recording of the unit.

    It may wait for its own server, or ask it: what it does then belongs to the run of the process.
    """
    run = active_run()
    is_elsewhere = threading.current_thread() is not threading.main_thread()
    if is_elsewhere and is_replay_of_unit() and run is not None and run.session is not None:
        extent = run.session.extent
        if extent is not None:
            extent.is_beside_main = True


def _find_replay_of_unit() -> Run | None:
    run = active_run()
    if run is None or run.session is None:
        raise AssertionError("only a replay plays a unit")
    hold_main()
    if not is_replay_of_unit():
        run.session.stop(UNITS_APART)
        return None
    reasons = run.session.recording.completeness().reasons
    awaited = next((reason for reason in reasons if reason in _waiting), None)
    if awaited is not None:
        run.session.stop(awaited)
        return None
    return run


def _has_come_otherwise(run: Run) -> bool:
    """Whether the unit that is judged is none of the server's, but a job that the same process works on."""
    return run.session is not None and run.session.index.at(LANE, GIVEN, 0) is not None


def iter_units(run: Run, *first_calls: str) -> Iterator[str]:
    """The root lane of each unit that this replay gives to a program which has started; the judged one comes last.

    The caller gives the unit while it has the lane; what comes of it is noted then. A unit whose first call is none
    of `first_calls` came into the process by another way, and is left out.
    """
    factory.divide()
    session = run.session
    if session is None or session.extent is None:
        raise AssertionError("only a replay plays a unit")
    warm_up = session.extent.warm_up
    if warm_up is not None:
        for unit in warm_up.iter_left():
            if any(reason in unit.reason for reason in _waiting):
                unit.why = unit.reason
                continue
            is_ours = any(session.index.at(unit.lane, each, 0) is not None for each in first_calls)
            if is_ours and warm_up.claim(unit):
                warm_up.begin(unit, run)
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
