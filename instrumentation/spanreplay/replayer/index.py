"""Finds the recorded call for a call of the replay; every step is O(1) in the length of the run."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from urllib.parse import urlsplit

from spanreplay.model.call import ALONE, CallRecord, Kind, Recording
from spanreplay.model.lane_names import is_earlier, is_within

Slot = tuple[str, str, int]
_LABEL: Final = re.compile(r":[^/#]*#")
_EMPTY: Final[tuple[Any, ...]] = ({}, [], None, "")
_UNUSED_SEEN_MAX: Final = 16
_USED_SEEN_MAX: Final = 4


@dataclass(frozen=True)
class Moved:
    """A recorded call elsewhere with an equal key; `rival` has an equal claim and a different answer."""

    call: CallRecord
    rival: CallRecord | None = None


class RecordingIndex:
    """Recorded calls by slot (lane, boundary, index), by call id and by key. Not thread-safe.

    Indexes that only a divergence needs are built at the first one.
    """

    def __init__(self, recording: Recording) -> None:
        self._slots: dict[tuple[str, str], dict[int, CallRecord]] = {}
        """By lane and boundary, then by number: calls that are looked up in sequence are adjacent in memory."""
        self._by_call_id: dict[tuple[str, str], deque[CallRecord]] = {}
        self._by_key: dict[tuple[str, str], deque[CallRecord]] = {}
        self._children: dict[int, list[CallRecord]] = {}
        self._calls = recording.calls
        self._elsewhere: _Elsewhere | None = None
        self._lacks_calls = lacks_calls(recording)
        self.used: set[int] = set()
        self.covered: set[int] = set()
        """Calls inside served ones: they won't be made."""
        for call in recording.calls:
            boundary = call.boundary
            self._slots.setdefault((call.lane, boundary), {})[call.index] = call
            place = _place(call.lane, boundary)
            self._by_key.setdefault((place, call.key), deque()).append(call)
            if call.call_id:
                self._by_call_id.setdefault((place, call.call_id), deque()).append(call)
            if call.parent >= 0:
                self._children.setdefault(call.parent, []).append(call)

    def at(self, lane: str, boundary: str, number: int) -> CallRecord | None:
        """Return the call in a slot."""
        numbered = self._slots.get((lane, boundary))
        return None if numbered is None else numbered.get(number)

    def take(self, call: CallRecord) -> None:
        """Mark a recorded call as answered for."""
        self.used.add(call.seq)

    def is_used(self, call: CallRecord) -> bool:
        """Whether a recorded call has been answered for."""
        return call.seq in self.used

    def is_gone(self, call: CallRecord) -> bool:
        """Whether a recorded call won't be made any more."""
        return call.seq in self.used or call.seq in self.covered

    def find_exact(self, slot: Slot, key: str, call_id: str) -> CallRecord | None:
        """Return the unused call in this slot, or else with this provider call id, if its key is equal."""
        call = self.at(*slot)
        if call is not None and call.key == key and call.seq not in self.used:
            return call
        if call_id:
            call = self._first(self._by_call_id.get((_place(slot[0], slot[1]), call_id)))
            if call is not None and call.key == key:
                return call
        return None

    def _first(self, queue: deque[CallRecord] | None) -> CallRecord | None:
        """Return the first unused call; amortised O(1)."""
        while queue and queue[0].seq in self.used:
            queue.popleft()
        return queue[0] if queue else None

    def is_lost(self, slot: Slot) -> bool:
        """Whether the call in this slot may have been made and lost: then no other call replaces it."""
        return self._lacks_calls and self.at(*slot) is None

    def find_moved(self, slot: Slot, key: str) -> Moved | None:
        """Return the unused call elsewhere with an equal key, unless the slot's own call was lost; amortised O(1).

        The order of preference is: the same lane, the lane that differs only in names, the earliest call.
        """
        lane, boundary = slot[0], _place(slot[0], slot[1])
        if self.is_lost(slot):
            return None
        queue = self._by_key.get((boundary, key))
        first = self._first(queue)
        if first is None or queue is None or len(queue) == 1:
            return None if first is None else Moved(first)
        elsewhere = self._build()
        own = self._first(elsewhere.by_place.get((boundary, key, lane)))
        if own is not None:
            return Moved(own)
        alike = elsewhere.by_place.get((boundary, key, _shape(lane)))
        found = self._first(alike)
        queue = queue if found is None or alike is None else alike
        first = queue[0]
        return Moved(first, next((c for c in islice(queue, _UNUSED_SEEN_MAX) if self._is_rival(first, c)), None))

    def _is_rival(self, first: CallRecord, other: CallRecord) -> bool:
        if other.seq in self.used or other.lane == first.lane:
            return False
        return (other.outcome, other.response) != (first.outcome, first.response)

    def find_in_slot(self, slot: Slot) -> CallRecord | None:
        """Return the unused call in this slot, whatever its key."""
        call = self.at(*slot)
        return None if call is None or call.seq in self.used else call

    def find_renamed(self, slot: Slot, request: str) -> CallRecord | None:
        """Return the unused call of another name with the same request, if this boundary was never recorded.

        An empty request proves nothing: then only the lane's next call qualifies.
        """
        elsewhere, (lane, boundary, _) = self._build(), slot
        if self.is_lost(slot) or _place(lane, boundary) in elsewhere.by_boundary:
            return None
        form = _rename_form(_place(lane, boundary.partition(":")[0]), request)
        upcoming = self.find_next(lane)
        if upcoming is not None and _rename_form(_place(lane, upcoming.kind), upcoming.request) == form:
            return upcoming
        if not form[1]:
            return None
        return next((c for c in elsewhere.by_form.get(form, ()) if not self.is_gone(c)), None)

    def find_next(self, lane: str) -> CallRecord | None:
        """Return the earliest call of a lane that is neither made nor covered; amortised O(1)."""
        queue = self._build().by_lane.get(lane)
        while queue and self.is_gone(queue[0]):
            queue.popleft()
        return queue[0] if queue else None

    def find_left(self, lane: str) -> CallRecord | None:
        """Return the first call in a lane, or below it, that is neither made nor covered and should have been made."""
        left = (c for c in self._calls if is_within(c.lane, lane) and not self.is_gone(c))
        return next((c for c in left if not c.meta.get(ALONE)), None)

    def find_skipped(self, call: CallRecord, index: int) -> CallRecord | None:
        """Return the first unused call of the lane between number `index` of its boundary and `call`."""
        numbers = range(index, call.index)
        slots = (self.at(call.lane, call.boundary, number) for number in islice(numbers, _UNUSED_SEEN_MAX))
        return next((c for c in slots if c is not None and not self.is_gone(c)), None)

    def iter_near(self, slot: Slot) -> Iterator[CallRecord]:
        """Yield recorded calls that may be meant, at most about twenty: same slot, same boundary, next in lane."""
        lane, boundary, _ = slot
        same = self._build().by_boundary.get(_place(lane, boundary), [])
        unused = islice((c for c in same if not self.is_gone(c)), _UNUSED_SEEN_MAX)
        used = islice((c for c in reversed(same) if c.seq in self.used), _USED_SEEN_MAX)
        upcoming = self.find_next(lane)
        found = [self.at(*slot), upcoming, *unused, *used]
        yield from {c.seq: c for c in found if c is not None}.values()

    def descendants(self, seq: int) -> list[CallRecord]:
        """Return all calls that were made inside a call, at any depth."""
        if seq not in self._children:
            return []
        found: list[CallRecord] = []
        stack = [seq]
        while stack:
            for child in self._children.get(stack.pop(), ()):
                found.append(child)
                stack.append(child.seq)
        return found

    def _build(self) -> _Elsewhere:
        if self._elsewhere is None:
            self._elsewhere = _Elsewhere(self._calls)
        return self._elsewhere


class _Elsewhere:
    """The same calls, indexed for divergences."""

    def __init__(self, calls: tuple[CallRecord, ...]) -> None:
        self.by_place: dict[tuple[str, str, str], deque[CallRecord]] = {}
        self.by_lane: dict[str, deque[CallRecord]] = {}
        self.by_boundary: dict[str, list[CallRecord]] = {}
        self.by_form: dict[tuple[str, str], list[CallRecord]] = {}
        for call in calls:
            boundary = _place(call.lane, call.boundary)
            for lane in {call.lane, _shape(call.lane)}:
                self.by_place.setdefault((boundary, call.key, lane), deque()).append(call)
            self.by_lane.setdefault(call.lane, deque()).append(call)
            self.by_boundary.setdefault(boundary, []).append(call)
            form = _rename_form(_place(call.lane, call.kind), call.request)
            self.by_form.setdefault(form, []).append(call)


def _place(lane: str, name: str) -> str:
    """Return a boundary or a kind, scoped to its unit: earlier units' calls answer only for themselves."""
    return f"{lane.partition('/')[0]} {name}" if is_earlier(lane) else name


def _shape(lane: str) -> str:
    """Return a lane without the names in it, as after renaming a function."""
    return _LABEL.sub(":#", lane)


def _rename_form(kind: str, request: str) -> tuple[str, str]:
    """Return the part of a request that stays when its boundary is renamed; '' if the request is empty."""
    try:
        value: Any = json.loads(request)
    except ValueError:
        return kind, request
    if not isinstance(value, dict):
        return kind, request
    if kind.endswith(Kind.HTTP.value) and isinstance(value.get("url"), str):
        # An HTTP boundary is named after its host
        parts = urlsplit(value["url"])
        value = {**value, "url": f"{parts.path}?{parts.query}", "headers": None}
    if all(each in _EMPTY for each in value.values()):
        return kind, ""
    return kind, json.dumps(value, sort_keys=True)


def is_open_ended(recording: Recording) -> bool:
    """Whether calls may have been made that are not in the recording."""
    return not recording.root.manifest or lacks_calls(recording)


def lacks_calls(recording: Recording) -> bool:
    """Whether calls were made anywhere in the run that are not in the recording."""
    manifest = recording.root.manifest
    expected = manifest.get("calls")
    return (isinstance(expected, int) and expected > len(recording.calls)) or bool(manifest.get("dropped"))
