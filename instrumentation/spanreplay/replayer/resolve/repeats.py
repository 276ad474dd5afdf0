"""Steps that a program repeats from its own checkpoint: their calls were recorded once already."""

from __future__ import annotations

import re
from typing import Final

from spanreplay.model.call import CallRecord, Recording
from spanreplay.runtime.calls.repeating import is_repeating

_COUNTS: Final = re.compile(r"#\d+|(?<=lg:)[^:/]*(?=:)")
"""The parts of a lane that a repetition changes: counters, and the step that LangGraph assigns."""


class Repeats:
    """Finds the recorded call that a repeated call corresponds to. Not thread-safe."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._calls: dict[tuple[str, str, str], list[CallRecord]] | None = None
        self._counts: dict[tuple[str, str, str], int] = {}

    def find(self, lane: str, boundary: str, key: str) -> CallRecord | None:
        """Return the next call of this step with an equal key, starting over after the last; None if there is none."""
        if not is_repeating():
            return None
        if self._calls is None:
            self._calls = {}
            for call in self._recording.calls:
                self._calls.setdefault((_COUNTS.sub("", call.lane), call.boundary, call.key), []).append(call)
        place = (_COUNTS.sub("", lane), boundary, key)
        calls = self._calls.get(place)
        if not calls:
            return None
        count = self._counts[place] = self._counts.get(place, -1) + 1
        return calls[count % len(calls)]
