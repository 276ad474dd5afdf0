"""The order of the calls of one lane, or of lanes that make each other's: a call behind one that it came before.

Calls of one boundary are compared by their places; this compares those of different ones. Two that only read, such
as looks at files, may change places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spanreplay.model.call import ALONE, CallRecord, Effect

__all__ = ["LaneOrder"]

_READS: Final = frozenset({Effect.READ.value, Effect.PURE.value})


@dataclass(slots=True)
class _Last:
    """The latest calls that a lane has made, in the order of the recording."""

    of_all: CallRecord
    of_acting: CallRecord | None


class LaneOrder:
    """Compares the order of calls with the recorded one, lane by lane. Not thread-safe."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Last] = {}
        self._exchanged: dict[str, CallRecord] = {}

    def note(self, lane: str, call: CallRecord) -> CallRecord | None:
        """Note that a lane makes a recorded call; return the later call that it has made before, or None."""
        if call.lane != lane or call.meta.get(ALONE):
            return None
        is_acting = call.effect not in _READS
        last = self._lanes.get(lane)
        if last is None:
            self._lanes[lane] = _Last(call, call if is_acting else None)
            return None
        before = last.of_all if is_acting else last.of_acting
        if before is not None and before.seq > call.seq:
            return before
        if call.seq > last.of_all.seq:
            last.of_all = call
        if is_acting:
            last.of_acting = call
        return None

    def note_exchange(self, job: str, call: CallRecord) -> CallRecord | None:
        """Note a call that another lane of the same job makes; return one that began after its end, made before."""
        before = self._exchanged.get(job)
        if before is None or call.seq > before.seq:
            self._exchanged[job] = call
        return before if before is not None and 0 <= call.end_seq < before.seq else None
