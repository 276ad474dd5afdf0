"""The order of calls of different boundaries: a call behind one that it came before.

Calls of one boundary are compared by their places. Which calls of two lanes have an order follows from when lanes were
made: what a lane does before it makes another one comes before all that the other one does. Two calls that only read,
such as looks at files, may change places.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

from spanreplay.model.call import ALONE, BIRTHS, CallRecord, Effect

__all__ = ["LaneOrder"]

_READS: Final = frozenset({Effect.READ.value, Effect.PURE.value})
_LANES_MAX: Final = 100
"""How many other lanes a call is compared with: those that have made calls last."""
_ALWAYS: Final = 1 << 62


class _Made:
    """The calls that a lane has made so far, without those behind a later one: their clocks, rising, and records."""

    __slots__ = ("calls", "clocks")

    def __init__(self) -> None:
        self.clocks: list[int] = []
        self.calls: list[CallRecord] = []

    def add(self, call: CallRecord, clock: int) -> None:
        """Add a call that begins at this clock, unless a later one has been made."""
        if not self.calls or call.seq > self.calls[-1].seq:
            self.clocks.append(clock)
            self.calls.append(call)

    def last(self, until: int = _ALWAYS) -> CallRecord | None:
        """Return the latest call, in the order of the recording, of those made until a clock."""
        count = bisect_right(self.clocks, until)
        return self.calls[count - 1] if count else None


class _Lane:
    """What a lane has made now, and when it was made itself."""

    __slots__ = ("acting", "all", "births", "parts")

    def __init__(self, path: str, births: Sequence[int]) -> None:
        self.parts = path.split("/")
        self.births = births
        self.all, self.acting = _Made(), _Made()

    def add(self, call: CallRecord, clock: int) -> None:
        """Add a call that begins at this clock."""
        self.all.add(call, clock)
        if _is_acting(call):
            self.acting.add(call, clock)


class LaneOrder:
    """Compares the order of calls with the recorded one. Not thread-safe."""

    def __init__(self, recorded: Iterable[CallRecord] = ()) -> None:
        self._recorded_births: dict[str, tuple[int, ...]] = {}
        self.learn(recorded)
        self._lanes: dict[str, _Lane] = {}
        """Those that have made calls, the latest at the end."""
        self._latest = -1
        self._exchanged: dict[str, CallRecord] = {}

    def learn(self, recorded: Iterable[CallRecord]) -> None:
        """Take in when the lanes of these recorded calls were made."""
        self._recorded_births.update((call.lane, _read_births(call)) for call in recorded if BIRTHS in call.meta)

    def note(self, lane: str, call: CallRecord, clock: int = 0, births: Sequence[int] = ()) -> CallRecord | None:
        """Note that a lane makes a recorded call; return the later call that was made before it, or None.

        `clock`: when the call begins; `births`: when the lane was made, see `Lane.births`.
        """
        if call.lane != lane or call.meta.get(ALONE):
            return None
        own = self._move_to_end(lane, births)
        before = (own.all if _is_acting(call) else own.acting).last()
        if before is not None and before.seq > call.seq:
            return before
        return self._note(own, call, clock)

    def note_exchange(
        self, job: str, lane: str, call: CallRecord, clock: int = 0, births: Sequence[int] = ()
    ) -> CallRecord | None:
        """Note a call that another lane of the same job makes; return a later call that was made before it, or None.

        Of calls of equal lanes, each may come first if they overlapped.
        """
        before = self._exchanged.get(job)
        if before is None or call.seq > before.seq:
            self._exchanged[job] = call
        found = self._note(self._move_to_end(lane, births), call, clock)
        return before if before is not None and 0 <= call.end_seq < before.seq else found

    def _move_to_end(self, lane: str, births: Sequence[int]) -> _Lane:
        own = self._lanes.pop(lane) if lane in self._lanes else _Lane(lane, births)
        self._lanes[lane] = own
        return own

    def _note(self, own: _Lane, call: CallRecord, clock: int) -> CallRecord | None:
        before = self._find_before(own, call) if call.seq < self._latest else None
        own.add(call, clock)
        self._latest = max(self._latest, call.seq)
        return before

    def _find_before(self, own: _Lane, call: CallRecord) -> CallRecord | None:
        """Return a call that came after this one and was made before it, if the two have an order."""
        for other in islice(reversed(self._lanes.values()), _LANES_MAX):
            made = other.all if _is_acting(call) else other.acting
            if not made.calls or made.calls[-1].seq < call.seq:
                continue
            shared = _count_shared(other.parts, own.parts)
            is_above = shared == len(own.parts)
            before = made.last(_ALWAYS if is_above else _birth(own.births, own.parts, shared))
            if before is not None and self._came_behind(before, call):
                return before
        return None

    def _came_behind(self, later: CallRecord, call: CallRecord) -> bool:
        """Whether the later call came after this one while recording.

        Its lane was made after this call; or it made the other one's lane, and this call had ended.
        """
        if later.lane == call.lane:
            return call.seq < later.seq
        parts, shared = later.lane.split("/"), _count_shared(later.lane.split("/"), call.lane.split("/"))
        if shared == len(parts):
            return 0 <= call.end_seq < later.seq
        return call.seq <= _birth(self._recorded_births.get(later.lane, ()), parts, shared)


def _is_acting(call: CallRecord) -> bool:
    """Whether a call changes anything."""
    return call.effect not in _READS


def _count_shared(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many parts two paths have in common at their beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (one, two) in pairs if one != two), min(len(first), len(second)))


def _birth(births: Sequence[int], parts: Sequence[str], place: int) -> int:
    """Return when the lane at this place of a path was made; 0 if nobody knows."""
    index = place - (len(parts) - len(births))
    return births[index] if 0 <= index < len(births) < len(parts) else 0


def _read_births(call: CallRecord) -> tuple[int, ...]:
    """Return what a recording says of a lane; () if it is no list of numbers."""
    births: Any = call.meta[BIRTHS]
    return tuple(births) if isinstance(births, list) and all(type(each) is int for each in births) else ()
