"""Notes when the task that closes a stream goes on.

Closing takes some iterations of the event loop (a client returns its connection under a lock, or hangs up), in which
other tasks make steps. If they did, the return of the close takes a value of the run's Lamport clock, kept in the
manifest like a timer's and named after the call, whose record may already be written by then. A replay, which has
nothing to close, returns in the same place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spanreplay.model import guard
from spanreplay.runtime.calls.turns import await_clock

if TYPE_CHECKING:
    from spanreplay.runtime.calls.open_call import Crossing

CLOSED: Final = "|closed|"
"""In a name, separates a lane from the call whose stream was closed."""


def _name(crossing: Crossing) -> str:
    return f"{crossing.lane.path}{CLOSED}{crossing.boundary}.{crossing.index}"


class Closing:
    """A stream that is being closed while it is recorded."""

    __slots__ = ("_crossing", "_place")

    def __init__(self, crossing: Crossing | None) -> None:
        self._crossing = crossing
        self._place = _place(crossing)

    def ended(self) -> None:
        """Note that it is closed, if anything else has happened since."""
        crossing = self._crossing
        if crossing is not None and not crossing.run.is_ended and _place(crossing) != self._place:
            guard.guarded("the end of a close", crossing.run.end_timer, _name(crossing), True)


def _place(crossing: Crossing | None) -> tuple[int, int]:
    """The progress of the run, and of the loop that runs here."""
    book = None if crossing is None else crossing.run.loops
    return (-1, -1) if book is None else book.place()


async def await_closed(crossing: Crossing | None) -> None:
    """In a replay, suspend until the recorded close had ended."""
    timers = None if crossing is None or crossing.served is None or crossing.is_reused else crossing.answers.gate.timers
    if crossing is not None and timers is not None:
        await await_clock(crossing, timers.get(_name(crossing), -1), 0)
