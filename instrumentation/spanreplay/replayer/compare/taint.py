"""Determines which calls an earlier divergence affects: through their lane, or through a text that they pass on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from spanreplay.replayer.divergence import Diff

NEW_TEXTS_MAX: Final = 1000
"""Limited because every later difference is searched for each of them."""


class Taint:
    """The divergences so far. Not thread-safe.

    A divergence affects its own lane, the lanes above it, which wait for it, and the lanes below it that began later;
    it affects other lanes only through a text. Each step is O(depth of the lane).
    """

    def __init__(self) -> None:
        self._own: dict[str, int] = {}
        self._below: dict[str, int] = {}
        self._began: dict[str, int] = {}
        self.texts: dict[str, int] = {}
        """Texts that are not in the recording → the call that first contained them."""

    def saw(self, lane: str, seq: int) -> None:
        """Record that a call is made in a lane."""
        if lane not in self._began:
            self._began[lane] = seq
            for above in _ancestors(lane):
                self._began.setdefault(above, seq)

    def note(self, lane: str, seq: int, texts: Iterable[str] = ()) -> None:
        """Record that a call has diverged and passes these new texts on."""
        self._own.setdefault(lane, seq)
        for above in _ancestors(lane):
            self._below.setdefault(above, seq)
        for text in sorted(texts):
            if len(self.texts) >= NEW_TEXTS_MAX:
                return
            self.texts.setdefault(text, seq)

    def find(self, lane: str, diff: Iterable[Diff] = ()) -> int | None:
        """Return the divergent call that affects a call of this lane with this difference; None if there is none."""
        found = self._own.get(lane, self._below.get(lane))
        if found is not None:
            return found
        began = self._began.get(lane)
        for above in _ancestors(lane):
            found = self._own.get(above)
            if found is not None and (began is None or found < began):
                return found
        texts = [str(d.now) for d in diff]
        return next((seq for new, seq in self.texts.items() if any(new in text for text in texts)), None)


def _ancestors(lane: str) -> Iterable[str]:
    at = lane.rfind("/")
    while at > 0:
        yield lane[:at]
        at = lane.rfind("/", 0, at)
