"""Messages that a program's own loop takes from a broker: each is a unit, from where it is taken to the next one.

    compute:input    (read)   which source the message came from
    tool:kafka.poll  (read)   the message, as the call of its client
    …                         what the program does for it
    compute:output   (write)  its end: the program takes the next message, closes the source, or ends

Taking, while nothing comes, belongs to no run. Tasks and pool jobs that the program starts for a message belong to it,
and its run ends when they have.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from spanreplay.model import guard
from spanreplay.model.call import Outcome
from spanreplay.runtime.caller.caller import AGENT, classify
from spanreplay.runtime.calls.function_calls import call_sync
from spanreplay.runtime.calls.taking import Source, Taking
from spanreplay.runtime.run import active_run
from spanreplay.units import caller, factory
from spanreplay.units.jobs import note_input, note_output
from spanreplay.units.messages.message import (
    ENDED,
    LEFT,
    LOOPS,
    NEXT,
    SOURCE,
    Message,
    describe_end,
    find_current,
    find_followed,
    find_of_client,
    find_raised,
    find_under_way,
    note_taken,
)
from spanreplay.units.unit_run import UnitRun

__all__ = ["RecordedMessages"]

_LOOPS_MAX: Final = 100
_PART: Final = "a message"
_APART: Final = "a message was taken in a task of its own, and another one worked on it: await the call in the loop"


class RecordedMessages:
    """Makes each message a run of its own, while recording; see `taking.Taker`."""

    def __init__(self) -> None:
        self._open: dict[int, Message] = {}
        self._taken: WeakKeyDictionary[Any, Message] = WeakKeyDictionary()
        """Tasks that do nothing but take messages, each with its last one."""
        self._loops: set[str] = set()
        self._is_registered = False

    def applies(self, source: Source) -> bool:
        """Whether no unit is under way here, except one of this source."""
        message = find_under_way()
        if message is not None:
            return message.ends_at(source)
        run = active_run()
        return run is not None and run.resolver.keeps and not isinstance(run, UnitRun)

    def take(self, taking: Taking, live: Callable[[], Any]) -> Any:
        """End the message before, and begin the next one when it comes."""
        self._arrive(taking.source)
        with factory.unrecorded(is_from_start=True):
            found = live()
        if not taking.is_nothing(found) and self._begin(taking, found):
            call_sync(taking.describe, lambda: taking.show(found))
        return found

    async def take_async(self, taking: Taking, live: Callable[[], Awaitable[Any]]) -> Any:
        """Asynchronous `take`."""
        self._arrive(taking.source)
        with factory.unrecorded(is_from_start=True):
            found = await live()
        if not taking.is_nothing(found) and self._begin(taking, found):
            call_sync(taking.describe, lambda: taking.show(found))
        return found

    def leave(self, client: int, raised: BaseException | None) -> None:
        """End the message, because the program is done with it or is about to close its client."""
        message = find_of_client(client)
        if message is not None:
            self._end(message, LEFT, raised)

    def follow(self, work: Any) -> None:
        """Keep the message's run open until a task or a pool's future has ended."""
        message = find_followed()
        run = None if message is None else message.run
        if message is not None and isinstance(run, UnitRun):
            run.hold()
            message.follow(work, lambda _: self._unfollow(message, run, work))

    def _unfollow(self, message: Message, run: UnitRun, work: Any) -> None:
        if work in message.works:
            message.works.discard(work)
            run.release()

    def _arrive(self, source: Source) -> None:
        """End the message before; a source that is asked where there is none is one of a loop."""
        message = find_current()
        if message is not None:
            self._end(message, NEXT)
        if len(self._loops) < _LOOPS_MAX:
            self._loops.add(source.name)

    def _begin(self, taking: Taking, found: Any) -> bool:
        run = guard.guarded(_PART, factory.open_unit, taking.source.name)
        if run is None:
            return False
        if not self._is_registered:  # now, so that it comes before the end of the process's run
            self._is_registered = True
            atexit.register(self._end_all)
        loops = sorted(self._loops)
        message = Message(taking.source, run, run.root_lane, loops)
        self._open[id(message)] = message
        message.enter()
        given = {SOURCE: taking.source.name, LOOPS: loops}
        guard.guarded("whose a message is", _look_at_caller, run, taking, found, given)
        guard.guarded(_PART, note_input, given)
        if not note_taken(message):
            guard.guarded(_PART, self._watch, message)
        return True

    def _watch(self, message: Message) -> None:
        """End the message with a task that does nothing but take it, such as one of `asyncio.wait`."""
        task = _current_task()
        code = None if task is None else getattr(task.get_coro(), "cr_code", None)
        if task is None or (code is not None and classify(code.co_filename) == AGENT):
            return
        if task not in self._taken:
            task.add_done_callback(self._end_with_task)
        self._taken[task] = message

    def _end_with_task(self, task: Any) -> None:
        message = self._taken.pop(task, None)
        if message is not None and not message.is_over and message.run is not None:
            message.run.hole(_APART)
            self._end(message, LEFT)

    def _end(self, message: Message, then: str, raised: BaseException | None = None) -> None:
        self._open.pop(id(message), None)
        run = message.run
        if not message.is_over and isinstance(run, UnitRun):
            message.is_over = True
            with factory.inside_unit(run):
                guard.guarded(_PART, note_output, describe_end(raised, then))
            self._unfollow(message, run, _current_task())  # it takes the next message
            if raised is not None:
                run.note_failure()
            guard.guarded(_PART, run.end, Outcome.OK if raised is None else Outcome.ERROR)
        message.leave()

    def _end_all(self) -> None:
        """The program ends, and has left its loop with the last message."""
        for message in list(self._open.values()):
            self._end(message, ENDED, find_raised())


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs
        return None


def _look_at_caller(run: UnitRun, taking: Taking, found: Any, given: Mapping[str, Any]) -> None:
    stated = {} if taking.headers is None else {str(n).lower(): v for n, v in taking.headers(found).items()}
    named = []
    for name in caller.find_names():
        value = stated.get(name)
        if isinstance(value, (str, bytes)):
            named.append((name.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace")))
    caller.look_at_caller(run, named, lambda: given)
