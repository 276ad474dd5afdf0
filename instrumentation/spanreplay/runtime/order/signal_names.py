"""How a recording names the signals that reached a handler of the program: as timers that fired.

A name has the lane, the signal's number among those of the lane, the signal, and the place where it came.
"""

from __future__ import annotations

import signal
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
_DIGITS_MAX: Final = 12


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
        return _to_number(number) if number != self.place else -1

    @property
    def code(self) -> CodePlace | None:
        """The place in the code; None for another place."""
        parts = self.place.rsplit(":", 3)
        offset, written = (_to_number(each) for each in parts[2:]) if len(parts) == 4 else (-1, -1)
        return CodePlace(parts[0], parts[1], offset, written) if offset >= 0 and written >= 0 else None


def _to_number(text: str) -> int:
    """The number that a recording holds as text; -1 for anything else."""
    return int(text) if len(text) <= _DIGITS_MAX and text.isdecimal() else -1


def name_signal(lane: Lane, number: int, place: str) -> str:
    """The name of the next signal of a lane."""
    return f"{lane.path}{_SIGNAL}{lane.next_index('signal')}:{number}:{place}"


def find_signals(timers: Mapping[str, int], lane: str) -> list[Arrival]:
    """The signals that came in a lane, in their order; `timers` are names and clocks."""
    found = []
    for name, clock in timers.items():
        at, sign, rest = name.partition(_SIGNAL)
        parts = rest.split(":", 2)
        number = _to_number(parts[1]) if sign and at == lane and len(parts) == 3 else -1
        if 0 < number < signal.NSIG:
            found.append(Arrival(clock, number, parts[2]))
    return sorted(found, key=lambda arrival: arrival.clock)
