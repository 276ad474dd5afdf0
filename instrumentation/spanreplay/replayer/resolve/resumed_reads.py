"""Reads of a resumed run: first the recorded ones, then real ones, which are logged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spanreplay.replayer.resolve.recorded_reads import ReadFeed
from spanreplay.runtime.reads import Draw, ReadLog, Source, left_of

if TYPE_CHECKING:
    from spanreplay.runtime.lanes import Lane


class ResumedReads:
    """Serves the recorded reads, lane by lane, and records those that follow. Thread-safe."""

    def __init__(self, feed: ReadFeed, log: ReadLog, left: list[Any]) -> None:
        self._feed = feed
        self._log = log
        self._left = left
        log.continue_from(feed.counts())

    def read(self, lane: Lane, source: Source, draw: Draw, shifted: Callable[[int], Any] | None = None) -> Any:
        """Return the recorded value, or a real one after the last recorded value of the lane."""
        if self._feed.has_more(lane, source):
            return self._feed.read(lane, source, draw, shifted)
        return self._log.read(lane, source, draw, shifted)

    def shift(self, family: str) -> int:
        """0: from the question on, the clock is real."""
        return 0

    def misfit(self, lane: Lane, source: Source) -> None:
        """Note that a recorded value does not fit the program."""
        self._feed.misfit(lane, source)

    def flush(self, lane: Lane) -> str:
        """Return the lane's real reads since its last call."""
        return self._log.flush(lane)

    def describe_pending(self) -> dict[str, dict[str, int]]:
        """Return the real reads that no call carries yet."""
        return self._log.describe_pending()

    def settle(self) -> None:
        """No-op: recorded values that were not read again show in the calls."""

    def finish(self) -> dict[str, Any]:
        """Return the reads for the manifest."""
        found = self._log.finish()
        reads = found["reads"]
        left = [*self._left, *reads.get("left", [])]
        return {"reads": {**reads, "left": left} if left else reads}


def resume_reads(feed: ReadFeed, log: ReadLog, manifest: Any) -> ResumedReads:
    """Return the reads of a run that resumes where the run of this manifest ended."""
    return ResumedReads(feed, log, list(left_of(manifest)))
