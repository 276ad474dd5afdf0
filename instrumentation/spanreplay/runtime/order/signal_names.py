"""How a recording names the signals that reached a handler of the program: as timers that fired.

A name has the lane, the signal's number among those of the lane, the signal, and the place where it came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spanreplay.runtime.lanes import Lane

IN_LOOP: Final = "loop"
"""While an event loop ran."""
IN_CALL: Final = "call."
"""During a recorded call; followed by its number."""
IN_PAUSE: Final = "pause"
"""In `signal.pause`."""
_SIGNAL: Final = "|signal|"


@dataclass(frozen=True)
class CodePlace:
    """A place in the program's code."""

    file: str
    """The last part of its path."""
    function: str
    offset: int
    """Offset, in bytes, of the instruction that was running."""
    written: int
    """How many characters the program had written to standard output."""


@dataclass(frozen=True)
class Arrival:
    """One signal of a recording."""

    clock: int
    number: int
    place: str

    @property
    def call(self) -> int:
        """The number of the call during which it came; -1 for another place."""
        number = self.place.removeprefix(IN_CALL)
        return int(number) if number != self.place and number.isdecimal() else -1

    @property
    def code(self) -> CodePlace | None:
        """The place in the code; None for another place."""
        parts = self.place.rsplit(":", 3)
        if len(parts) < 4 or not (parts[2].isdecimal() and parts[3].isdecimal()):
            return None
        return CodePlace(parts[0], parts[1], int(parts[2]), int(parts[3]))


def name_signal(lane: Lane, number: int, place: str) -> str:
    """The name of the next signal of a lane."""
    return f"{lane.path}{_SIGNAL}{lane.next_index('signal')}:{number}:{place}"


def find_signals(timers: Mapping[str, int], lane: str) -> list[Arrival]:
    """The signals that came in a lane, in their order; `timers` are names and clocks."""
    found = []
    for name, clock in timers.items():
        at, sign, rest = name.partition(_SIGNAL)
        parts = rest.split(":", 2)
        if sign and at == lane and len(parts) == 3 and parts[1].isdecimal():
            found.append(Arrival(clock, int(parts[1]), parts[2]))
    return sorted(found, key=lambda arrival: arrival.clock)
