"""Finds the recorded call for a call of the replay; every step is O(1) in the length of the run."""

from __future__ import annotations

from collections import deque

from spanreplay.call import CallRecord, Recording

Slot = tuple[str, str, int]


class RecordingIndex:
    """Recorded calls by slot (lane, boundary, index), by call id and by key. Not thread-safe."""

    def __init__(self, recording: Recording) -> None:
        self.by_slot: dict[Slot, CallRecord] = {}
        self._by_call_id: dict[tuple[str, str], CallRecord] = {}
        self._by_key: dict[tuple[str, str], deque[CallRecord]] = {}
        self._children: dict[int, list[CallRecord]] = {}
        self.used: set[int] = set()
        for call in recording.calls:
            boundary = call.boundary
            self.by_slot[(call.lane, boundary, call.index)] = call
            self._by_key.setdefault((boundary, call.key), deque()).append(call)
            if call.call_id:
                self._by_call_id.setdefault((boundary, call.call_id), call)
            if call.parent >= 0:
                self._children.setdefault(call.parent, []).append(call)

    def take(self, call: CallRecord) -> None:
        """Mark a recorded call as answered for."""
        self.used.add(call.seq)

    def is_used(self, call: CallRecord) -> bool:
        """Whether a recorded call has been answered for."""
        return call.seq in self.used

    def find_exact(self, slot: Slot, key: str, call_id: str) -> CallRecord | None:
        """The unused call in this slot, else with this provider call id, whose key is equal."""
        call = self.by_slot.get(slot)
        if call is not None and call.key == key and call.seq not in self.used:
            return call
        if call_id:
            call = self._by_call_id.get((slot[1], call_id))
            if call is not None and call.key == key and call.seq not in self.used:
                return call
        return None

    def find_moved(self, boundary: str, key: str) -> CallRecord | None:
        """The earliest unused call elsewhere with an equal key; amortised O(1)."""
        queue = self._by_key.get((boundary, key))
        while queue and queue[0].seq in self.used:
            queue.popleft()
        return queue[0] if queue else None

    def find_in_slot(self, slot: Slot) -> CallRecord | None:
        """The unused call in this slot, whatever its key."""
        call = self.by_slot.get(slot)
        return None if call is None or call.seq in self.used else call

    def descendants(self, seq: int) -> list[CallRecord]:
        """All calls that were made inside a call, at any depth."""
        found: list[CallRecord] = []
        stack = [seq]
        while stack:
            for child in self._children.get(stack.pop(), ()):
                found.append(child)
                stack.append(child.seq)
        return found
