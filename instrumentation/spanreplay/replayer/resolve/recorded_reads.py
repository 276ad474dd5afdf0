"""The recorded reads of a run, served again in its replay: by lane, source and order.

A replay that reads the clock more or less often than the recorded run is not the same computation, whatever it prints:
each (lane, source) that differs is one divergence. Reads without a recorded value continue from where the recording
ended: a clock from its last recorded value plus the time that has really passed, random sources with new values. Values
sealed with another redaction key are drawn anew, too: what the agent does with them is compared, and the verdict names
the source.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import ids
from spanreplay.model.lane_names import is_earlier
from spanreplay.model.own_threads import make_lock
from spanreplay.replayer.divergence import Divergence
from spanreplay.replayer.known_holes import has_ended_at_a_hole
from spanreplay.runtime.reads import SOURCES, Draw, Source, collect, left_of

if TYPE_CHECKING:
    from spanreplay.model.call import Recording
    from spanreplay.replayer.resolve.session import Session
    from spanreplay.runtime.lanes import Lane

_WALL: Final = "wall"
_MISSING: Final = object()


class _Queue:
    """The recorded values of one source in one lane."""

    __slots__ = ("at", "end", "is_reported", "values")

    def __init__(self, values: dict[int, Any]) -> None:
        self.values = values
        self.end = max(values, default=-1) + 1
        self.at = 0
        self.is_reported = False

    def next(self) -> Any:
        """Return the next recorded value, or _MISSING if none was recorded or the call that carried it is lost."""
        index, self.at = self.at, self.at + 1
        return self.values.get(index, _MISSING)


class ReadFeed:
    """Serves the reads of a recording. Thread-safe."""

    def __init__(
        self,
        session: Session,
        start_ns: int,
        unseal: Callable[[str], bytes | None],
        owns: Callable[[str], bool] = lambda lane: True,
    ) -> None:
        recording = session.recording
        texts = (call.reads for call in recording.calls if call.reads)
        self._session = session
        self._unseal = unseal
        self._owns = owns
        self._queues = {key: _Queue(values) for key, values in collect(texts, left_of(recording.root.manifest)).items()}
        self._first_shift = recording.root.start_ns - start_ns if recording.root.start_ns else 0
        self._shifts: dict[str, int] = {_WALL: self._first_shift}
        self._is_live: dict[str, bool] = {}
        self._lock = make_lock()

    def extend(self, start_ns: int) -> None:
        """Append the values of the session's longer recording to those already read."""
        recording = self._session.recording
        texts = (call.reads for call in recording.calls if call.reads)
        for key, values in collect(texts, left_of(recording.root.manifest)).items():
            before, queue = self._queues.get(key), _Queue(values)
            if before is not None:
                queue.at, queue.is_reported = before.at, before.is_reported
            self._queues[key] = queue
        if self._shifts[_WALL] == self._first_shift and recording.root.start_ns:
            self._shifts[_WALL] = recording.root.start_ns - start_ns
        self._lock = make_lock()

    def read(self, lane: Lane, source: Source, draw: Draw, shifted: Callable[[int], Any] | None = None) -> Any:
        """Return the recorded value, or a new one after the last."""
        if self._goes_live(source) and not is_earlier(lane.path):
            return draw()
        key = (lane.path, source.name)
        with self._lock:
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = _Queue({})
            beside = self._read_launch(lane, source)
            written = _MISSING if beside or self._is_past(lane, source) else queue.next()
            beside = beside or (self._read_beside(lane, source) if written is _MISSING else ())
        if written is not _MISSING or beside:
            value = self._unpack(source, beside[0] if beside else written)
            if value is not _MISSING:
                if not beside:
                    self._follow(source, value, draw)
                return value
            self._session.hidden.unreadable[source.boundary] = None
        elif not source.is_loose:
            self._note_extra(lane, source, queue)
        if shifted is None:
            return draw()
        return shifted(self._shifts.get(source.family, 0))

    def shift(self, family: str) -> int:
        """Return by how many nanoseconds the last recorded value of such a clock was later than the real one."""
        return self._shifts.get(family, 0)

    def has_more(self, lane: Lane, source: Source) -> bool:
        """Whether a lane has recorded values of a source left."""
        queue = self._queues.get((lane.path, source.name))
        return queue is not None and queue.at < queue.end

    def counts(self) -> dict[tuple[str, str], int]:
        """Map (lane, source) to the number of recorded values."""
        return {key: queue.end for key, queue in self._queues.items()}

    def flush(self, lane: Lane) -> str:
        """Return '': a replay records no reads of its own."""
        return ""

    def finish(self) -> dict[str, Any]:
        """Return nothing for the manifest."""
        return {}

    def describe_pending(self) -> dict[str, dict[str, int]]:
        """Return nothing: a replay records no reads of its own."""
        return {}

    def _goes_live(self, source: Source) -> bool:
        is_live = self._is_live.get(source.name)
        if is_live is None:
            is_live = self._is_live[source.name] = self._session.plan.is_live(source.boundary)
        return is_live

    def _is_past(self, lane: Lane, source: Source) -> bool:
        """Whether a background task reads a clock after the start: that clock follows the unit's time."""
        extent = self._session.extent
        return source.to_ns is not None and extent is not None and extent.is_beside(lane.path)

    def _read_launch(self, lane: Lane, source: Source) -> tuple[Any, ...]:
        """Return what the program read here before it started the process of the unit; mostly ()."""
        extent = self._session.extent
        return () if extent is None or extent.has_started else extent.launch.read_behind(lane.path, source.name)

    def _read_beside(self, lane: Lane, source: Source) -> tuple[Any, ...]:
        """Return what a background task, or the launch of the process, read there; () if that has no more values."""
        extent = self._session.extent
        if extent is not None and not extent.has_started:
            return extent.launch.read(lane.path, source.name)
        if extent is None or not extent.is_beside(lane.path):
            return ()
        return extent.background.read(self._session, lane.path, source)

    def _unpack(self, source: Source, written: Any) -> Any:
        if source.is_secret:
            plain = self._unseal(written)
            if plain is None:
                return _MISSING
            written = json.loads(plain)
        return source.unpack(written)

    def _follow(self, source: Source, value: Any, draw: Draw) -> None:
        if source.to_ns is not None:
            self._shifts[source.family] = source.to_ns(value) - source.to_ns(draw())

    def _note_extra(self, lane: Lane, source: Source, queue: _Queue) -> None:
        with self._lock:
            if queue.is_reported:
                return
            queue.is_reported = True
        session = self._session
        extent = session.extent
        if extent is not None and (extent.is_beside(lane.path) or extent.is_past_start(lane, queue.end > 0)):
            return
        if not session.completeness.is_complete and not session.divergences:
            session.has_reached_frontier = True
            return
        what = "was read once more than recorded" if queue.end else "was not read when this was recorded"
        session.add_divergence(
            Divergence(
                kind="extra_call",
                boundary=source.boundary,
                message=f"{source.name} {what}, in lane {lane.path}",
                lane=lane.path,
                index=queue.at - 1,
                code=ids.find_caller(4),
                hint=f"--live {source.boundary} lets it go live",
            )
        )

    def misfit(self, lane: Lane, source: Source) -> None:
        """Note that the program picks from fewer or picks another number than when this was recorded."""
        if source.is_loose or self._goes_live(source):
            return
        self._session.add_divergence(
            Divergence(
                kind="changed_call",
                boundary=source.boundary,
                message=f"{source.name} picks from fewer things, or another number of them, than when this was "
                f"recorded, in lane {lane.path}",
                lane=lane.path,
                index=0,
                code=ids.find_caller(4),
                hint=f"--live {source.boundary} lets it go live",
            )
        )

    def settle(self) -> None:
        """Note the recorded reads that were not repeated; call once, after the agent has ended."""
        session = self._session
        if session.is_stopped or session.has_reached_frontier or has_ended_at_a_hole(session):
            return
        for (lane, name), queue in sorted(self._queues.items()):
            source = SOURCES.get(name)
            is_passed = source is None or source.is_loose or queue.at >= queue.end
            is_passed = is_passed or (session.extent is not None and session.extent.is_outside(lane))
            if source is None or is_passed or self._goes_live(source) or not self._owns(lane):
                continue
            session.add_divergence(
                Divergence(
                    kind="missing_call",
                    boundary=source.boundary,
                    message=f"{name} was read {queue.end} times when this was recorded, {queue.at} times now, "
                    f"in lane {lane}",
                    lane=lane,
                    index=queue.at,
                    hint=f"--live {source.boundary} lets it go live",
                )
            )


def has_reads(recording: Recording) -> bool:
    """Whether clocks and random sources were recorded in this run."""
    return bool(recording.root.env.get("reads"))
