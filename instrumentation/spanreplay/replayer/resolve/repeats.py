"""Steps that a program takes again, from a checkpoint of its own: what they call was recorded once already."""

from __future__ import annotations

import re
from typing import Final

from spanreplay.model.call import CallRecord, Recording
from spanreplay.runtime.calls.repeating import is_repeating

_COUNTS: Final = re.compile(r"#\d+|(?<=lg:)[^:/]*(?=:)")
"""What a repetition changes in a lane: counters, and the step that LangGraph gives to it."""


class Repeats:
    """Finds the recorded call that a repetition stands for. Not thread-safe."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._calls: dict[tuple[str, str, str], list[CallRecord]] | None = None
        self._counts: dict[tuple[str, str, str], int] = {}

    def find(self, lane: str, boundary: str, key: str) -> CallRecord | None:
        """The next of the calls of this step with an equal key, from the first again after the last; or None."""
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
