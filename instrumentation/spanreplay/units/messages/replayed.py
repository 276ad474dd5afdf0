"""Replays messages that a program's own loop takes: warm-up units, then the judged one, then the process ends.

The program starts as usual. Where it takes a message, it is given the recorded one, and no broker is asked; where it
takes the next one, the message is over.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import contextlib
import inspect
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

from spanreplay.model.errors import ReplayMiss
from spanreplay.model.lane_names import is_earlier, is_within
from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.calls.function_calls import call_sync
from spanreplay.runtime.calls.taking import Source, Taking, set_taker
from spanreplay.runtime.context_variables import holding
from spanreplay.runtime.lanes import Lane, current_lane, inside_lane
from spanreplay.runtime.order.loops import running_loop
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import Run, active_run
from spanreplay.units import factory
from spanreplay.units.jobs import end_job, find_replay_of_job, take_input
from spanreplay.units.messages.message import (
    ENDED,
    LEFT,
    LOOPS,
    NEXT,
    SOURCE,
    THEN,
    Message,
    describe_end,
    find_current,
    find_followed,
    find_of_client,
    find_raised,
    find_under_way,
    note_taken,
    waiting,
)
from spanreplay.units.messages.recorded import RecordedMessages
from spanreplay.units.play import end_replay, hold_main, iter_units
from spanreplay.units.start import await_start
from spanreplay.units.stated import GIVEN, LANE

__all__ = ["install"]

_LOOKS_MAX: Final = 2_000
_OUTPUT: Final = "compute:output"
_IDLE_S: Final = 0.002
"""How long a program waits that looks for messages of another source."""
_sleep: Final = inspect.unwrap(time.sleep)


def install(patches: Patches, run: Run) -> None:
    """Let each message be a run of its own."""
    set_taker(RecordedMessages() if run.resolver.keeps else ReplayedMessages())
    if sys.version_info < (3, 12):  # later, the caller itself awaits
        patches.wrap(asyncio.tasks, "wait_for", _wait_for)
        patches.replace(asyncio, "wait_for", asyncio.tasks.wait_for)


async def _wait_for(wrapped: Any, module: Any, args: Any, kwargs: Any) -> Any:
    """Wait for a task of its own; the message that it has taken is the caller's."""
    taken: list[Message] = []
    try:
        with holding(waiting, taken):
            return await wrapped(*args, **kwargs)
    finally:
        message = find_current()
        if message is not None and message.is_over:
            message.leave()
        if taken:
            taken[-1].enter()


class ReplayedMessages:
    """Gives a program the recorded messages; see `taking.Taker`."""

    def __init__(self) -> None:
        self._lanes: Iterator[str] | None = None
        self._next: tuple[Lane, Mapping[str, Any]] | None = None
        self._message: Message | None = None
        """The message that the program works on."""
        self._looks = (-1, 0)
        """The call that a loop is to make next, and how often it has looked for messages since the one before."""
        self._lock = make_lock()
        self._is_registered = False

    def applies(self, source: Source) -> bool:
        """Whether this is the replay of messages, and no unit is under way here, except one of this source."""
        message = find_under_way()
        if message is not None:
            return message.ends_at(source)
        run = active_run()
        if run is None or run.resolver.keeps:
            return False
        lane = current_lane(run.root_lane).path
        return not is_within(lane, LANE) and not is_earlier(lane)

    def take(self, taking: Taking, live: Callable[[], Any]) -> Any:
        """End the message before, and give the next one."""
        message = self._note_next()
        if message is not None:
            while message.works:
                _sleep(_IDLE_S)
            self._end(message)
        run = find_replay_of_job()
        if taking.nothing is not None and self._has_more_to_start(run):
            return taking.nothing()
        try:
            if _begins_here(run):
                factory.end_start(run)
            while not self._has(run, taking.source):
                _sleep(_IDLE_S)
                if taking.nothing is not None:
                    return taking.nothing()
        except ReplayMiss:  # the session has noted it
            end_replay()
        return self._give(taking)

    async def take_async(self, taking: Taking, live: Callable[[], Awaitable[Any]]) -> Any:
        """Asynchronous `take`."""
        message = self._note_next()
        if message is not None:
            message.works.discard(asyncio.current_task())
            while message.works:
                await _idle()
            self._end(message)
        run = find_replay_of_job()
        if taking.nothing is not None and self._has_more_to_start(run):
            return taking.nothing()
        try:
            if _begins_here(run):
                await await_start(run)
            while not self._has(run, taking.source):
                await _idle()
                if taking.nothing is not None:
                    return taking.nothing()
        except ReplayMiss:
            end_replay()
        return self._give(taking)

    def leave(self, client: int, raised: BaseException | None) -> None:
        """End the message, because the program is done with it or is about to close its client."""
        message = find_of_client(client)
        if message is not None:
            self._note_end(message, LEFT, raised)
            while message.works and running_loop() is None:  # on a loop, waiting here would keep them from ending
                _sleep(_IDLE_S)
            self._end(message)

    def follow(self, work: Any) -> None:
        """Count a task or a pool's future among the work for the message."""
        message = find_followed()
        if message is not None:
            message.follow(work, message.works.discard)

    def _has_more_to_start(self, run: Run) -> bool:
        """Whether calls of the start are still to be made here: those that a loop makes when nothing comes.

        A program that looks in vain too often without making the next one does not make it any more.
        """
        answers = run.resolver.answers
        is_over = answers.extent is None or answers.extent.has_started
        due = None if is_over else answers.index.find_next(current_lane(run.root_lane).path)
        if due is None:
            return False
        number, count = self._looks
        self._looks = (due.number, count + 1 if number == due.number else 1)
        return self._looks[1] <= _LOOKS_MAX

    def _has(self, run: Run, source: Source) -> bool:
        """Whether the next message is one of this source. In a suite, each unit goes on in a fork from here."""
        factory.divide()
        with self._lock:
            if self._message is not None or not _is_of_message(run):
                return False
            if self._next is None:
                self._lanes = self._lanes or iter_units(run, GIVEN)
                lane = Lane(next(self._lanes))
                with inside_lane(lane):
                    self._next = lane, take_input()
            return bool(self._next[1].get(SOURCE) == source.name)

    def _give(self, taking: Taking) -> Any:
        with self._lock:
            if self._next is None:
                raise AssertionError("the next message is known by now")
            if not self._is_registered:  # now, so that it comes before the verdict
                self._is_registered = True
                atexit.register(self._end_all)
            lane, given = self._next
            self._message = message = Message(taking.source, None, lane, given.get(LOOPS, ()))
            self._next = None
        message.enter()
        note_taken(message)
        return taking.build(call_sync(taking.describe, _refuse))

    def _note_next(self) -> Message | None:
        """Note that the program has come to the next message; return the one before."""
        message = find_current()
        if message is not None:
            self._note_end(message, NEXT)
        return message

    def _note_end(self, message: Message, then: str, raised: BaseException | None = None) -> None:
        """Compare the end of a message.

        A program that ended or left its loop then may have been asked to: now it may go on.
        """
        if message.is_over:
            return
        message.is_over = True
        run = find_replay_of_job()
        try:
            with inside_lane(message.lane):
                recorded = _find_then(run, message.lane.path)
                end_job(run, message.lane.path, describe_end(raised, then if recorded == NEXT else recorded))
        except ReplayMiss:
            end_replay()

    def _end(self, message: Message) -> None:
        if message.lane.path == LANE:
            end_replay()
        message.leave()
        with self._lock:
            self._message = None

    def _end_all(self) -> None:
        """The program ends, and has left its loop with the last message."""
        message = self._message
        if message is not None:
            self._note_end(message, ENDED, find_raised())


def _begins_here(run: Run) -> bool:
    """Whether the start of the process is over where it takes a message: not if it also serves what is judged."""
    is_begun = factory.is_suite() or _is_of_message(run)
    if is_begun:
        hold_main()
    return is_begun


def _is_of_message(run: Run) -> bool:
    """Whether the judged unit is a message, not a request or job of the same process."""
    recorded = run.resolver.answers.index.at(LANE, GIVEN, 0)
    value = None if recorded is None else json.loads(recorded.response or "{}").get("value")
    return isinstance(value, Mapping) and value.keys() == {SOURCE, LOOPS}


def _find_then(run: Run, lane: str) -> str:
    """Return what the program did after a message when that was recorded."""
    recorded = run.resolver.answers.index.at(lane, _OUTPUT, 0)
    stated = {} if recorded is None else json.loads(recorded.request or "{}").get("arguments", {})
    return str(stated.get(THEN, NEXT))


async def _idle() -> None:
    """Let the loop work for a while, without a timer of its own."""
    loop = asyncio.get_running_loop()
    waited = loop.create_future()

    def wake() -> None:
        _sleep(_IDLE_S)
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(_settle, waited)

    _thread.start_new_thread(wake, ())
    await waited


def _settle(waited: asyncio.Future[None]) -> None:
    if not waited.done():
        waited.set_result(None)


def _refuse() -> Any:
    raise ReplayMiss("a message can't come in live")
