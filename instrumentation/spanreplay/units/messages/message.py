"""A message that a program works on: the context in which it works, and what it leaves to do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from contextvars import ContextVar
from types import FrameType
from typing import Any, Final

from spanreplay.runtime.caller.caller import AGENT, FRAMES_MAX, origin_of
from spanreplay.runtime.caller.running import RUN
from spanreplay.runtime.calls.taking import Source
from spanreplay.runtime.context_variables import set_variable
from spanreplay.runtime.lanes import Lane, is_plumbing_here, put_place, take_place
from spanreplay.runtime.run import Run
from spanreplay.units.jobs import describe_exception

__all__ = [
    "ENDED",
    "LEFT",
    "LOOPS",
    "NEXT",
    "SOURCE",
    "THEN",
    "Message",
    "describe_end",
    "find_current",
    "find_followed",
    "find_of_client",
    "find_raised",
    "find_under_way",
    "note_taken",
    "waiting",
]

SOURCE, LOOPS = "source", "loops"
"""Members of a message's input: its source, and all sources that the program's loops had asked by then."""
THEN: Final = "then"
NEXT, LEFT, ENDED = "takes the next message", "is done with it", "ends"
"""What a program does after a message: it has come to the next one, has left its loop or callback, has ended."""


class Message:
    """A message that the program works on, in a run and lane of its own."""

    def __init__(self, source: Source, run: Run | None, lane: Lane, loops: Collection[str]) -> None:
        self.source, self.run, self.lane = source, run, lane
        self._loops = loops
        """The sources that the program had asked outside of messages: those of its loops."""
        self._taken_in = _find_frame()
        """The function that took it, as it runs."""
        self.is_over = False
        self.is_adopted = False
        """Whether the task that waited for it works on it, not the one that took it."""
        self.works: set[Any] = set()
        """Tasks and pools' futures that have not ended."""
        self._before = RUN.get(), take_place()

    def ends_at(self, source: Source) -> bool:
        """Whether taking from a source here, in this message's context, takes the next message.

        Another source may hold the reply to a request: it belongs to the loop if the loop has asked it by itself, and
        the function that took this message asks it now.
        """
        return source == self.source or (source.name in self._loops and _find_frame() is self._taken_in)

    def enter(self) -> None:
        """Let the calling context work on it."""
        set_variable(RUN, self.run)
        put_place((self.lane, None))
        set_variable(_current, self)

    def leave(self) -> None:
        """Let the calling context work on none."""
        if _current.get() is self:
            set_variable(RUN, self._before[0])
            put_place(self._before[1])
            set_variable(_current, None)

    def follow(self, work: Any, ended: Callable[[Any], object]) -> None:
        """Note work that is done for the message."""
        self.works.add(work)
        work.add_done_callback(ended)


def _find_frame() -> FrameType | None:
    """Return the frame of the agent's own code that is nearest."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(FRAMES_MAX):
        if frame is None or origin_of(frame) == AGENT:
            break
        frame = frame.f_back
    return frame


_current: Final[ContextVar[Message | None]] = ContextVar("spanreplay_message", default=None)
"""The message that this context works on."""
waiting: Final[ContextVar[list[Message] | None]] = ContextVar("spanreplay_waiting", default=None)
"""Where a task that is waited for notes the messages that it has taken: whoever waits works on them."""


def note_taken(message: Message) -> bool:
    """Leave a message to whoever waits for this task."""
    taken = waiting.get()
    if taken is None:
        return False
    taken.append(message)
    message.is_adopted = True
    return True


def find_current() -> Message | None:
    """Return the message that this context works on, also if it is over."""
    return _current.get()


def find_under_way() -> Message | None:
    """Return the message that this context works on; None if that is over."""
    message = _current.get()
    return None if message is None or message.is_over else message


def find_followed() -> Message | None:
    """Return the message that work which is started here belongs to; None for work of a client's own."""
    return None if is_plumbing_here.get() else find_under_way()


def find_of_client(client: int) -> Message | None:
    """Return the message that this context works on, if it came from a client."""
    message = _current.get()
    return None if message is None or message.source.client != client else message


def find_raised() -> BaseException | None:
    """Return the exception that ends the program."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def describe_end(raised: BaseException | None, then: str) -> dict[str, Any]:
    """Return a message's output: what the program does next, and the exception with which it is done."""
    return {THEN: then} if raised is None else {THEN: then, "raised": describe_exception(raised)}
