"""Reads of the clock and of random sources: logged per lane while recording, carried by the lane's next call.

A read is one value of one source (`time.time`, `uuid.uuid4`). The reads between two calls of a lane travel as one JSON
text, `spanreplay.reads`:

    [[LANE, [[SOURCE, START, VALUE…]…]]…]      VALUE… continue at index START of SOURCE's values in LANE

Consecutive reads of one source share a row; whole numbers of a `_ns` source are differences from the previous value.
Reads left over when the run ends are in the manifest, under `reads`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from spanreplay.model import config
from spanreplay.model.errors import DamagedRecording
from spanreplay.model.json_text import dump
from spanreplay.model.own_threads import make_lock

if TYPE_CHECKING:
    from spanreplay.runtime.lanes import Lane

LANES_MAX: Final = 20
PENDING_MAX: Final = 100
"""Limits of `describe_pending`."""
Draw = Callable[[], Any]
Segments = list[list[Any]]


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, eq=False)
class Source:
    """One function that reads the clock or a random source, and how its values are written."""

    kind: str
    name: str
    pack: Callable[[Any], Any] = _same
    unpack: Callable[[Any], Any] = _same
    is_secret: bool = False
    """Its values are sealed: readable only with the redaction key."""
    family: str = ""
    """The clock that it shows; values generated after the last recorded one must agree within one clock."""
    to_ns: Callable[[Any], int] | None = None
    is_loose: bool = False
    """A different number of reads is not a divergence, because it does not depend on the agent alone."""

    @property
    def boundary(self) -> str:
        """Its name in plans and reports: `clock:time.time`."""
        return f"{self.kind}:{self.name.removesuffix(_IN_TOOLS).removesuffix(_OF_LIBRARIES)}"


SOURCES: Final[dict[str, Source]] = {}
"""Every source by name; each module of this package adds its own."""


def source(kind: str, name: str, **fields: Any) -> Source:
    """Add a source to the table."""
    made = SOURCES[name] = Source(kind, name, **fields)
    return made


def make_loose(kind: str, name: str, **fields: Any) -> Source:
    """A source outside the table; any number may exist, and a different number of reads is not a divergence."""
    return Source(kind, name, is_loose=True, **fields)


_OF_LIBRARIES: Final = " of libraries"
_OF_SERVERS: Final = " of servers"
_IN_TOOLS: Final = " in tools"
_twins: Final[dict[str, Source]] = {}


def of_libraries(source: Source) -> Source:
    """A source as libraries read it: its values are separate, and their number may differ.

    How often a library reads the clock may depend on caches and on its threads; the agent's own values stay in step.
    """
    return _twin(source, _OF_LIBRARIES)


def of_servers(source: Source) -> Source:
    """A source as servers and workers read it when the agent calls them; a replay without the server lacks some."""
    return _twin(source, _OF_SERVERS)


def in_tools(source: Source) -> Source:
    """A source as the body of a tool reads it; a replay needs the values only where it runs the body again."""
    return _twin(source, _IN_TOOLS)


def _twin(source: Source, suffix: str) -> Source:
    name = source.name + suffix
    twin = _twins.get(name)
    return _twins.setdefault(name, replace(source, name=name, is_loose=True)) if twin is None else twin


class Reads(Protocol):
    """The interface of patched functions: a recording logs values, a replay supplies them."""

    def read(self, lane: Lane, source: Source, draw: Draw, shifted: Callable[[int], Any] | None) -> Any:
        """The value to give to the agent. `shifted(ns)` draws as if the clock were that much later."""

    def shift(self, family: str) -> int:
        """By how many nanoseconds a replay's clock of this family is later than the real one; mostly negative."""

    def misfit(self, lane: Lane, source: Source) -> None:
        """The value that was just read does not fit the program."""

    def flush(self, lane: Lane) -> str:
        """The JSON text for this lane's next call; '' if there is nothing."""

    def describe_pending(self) -> dict[str, dict[str, int]]:
        """Lane → source → how many of its values no call carries yet."""

    def settle(self) -> None:
        """Note differences, after the agent has ended."""

    def finish(self) -> dict[str, Any]:
        """Members for the run's manifest."""


class ReadLog:
    """The reads of a run that is being recorded. Thread-safe: a lane's own thread appends, flushing takes a lock."""

    def __init__(self, seal: Callable[[bytes], str], hole: Callable[[str], None]) -> None:
        self._seal = seal
        self._hole = hole
        self._pending: dict[Lane, list[tuple[Source, Any]]] = {}
        self._before: dict[tuple[str, str], int] = {}
        self._lock = make_lock()
        self.total = 0
        self._is_full = False

    def read(self, lane: Lane, source: Source, draw: Draw, shifted: Callable[[int], Any] | None = None) -> Any:
        """Draw a real value, and log it."""
        value = draw()
        reads = self._pending.get(lane)
        if reads is None:
            reads = self._pending.setdefault(lane, [])
        if len(reads) < (config.LOOSE_READS_PENDING_MAX if source.is_loose else config.READS_PENDING_MAX):
            reads.append((source, value))
            if self._pending.get(lane) is not reads:  # a call of another lane has just removed the empty list
                self._put_back(lane, reads)
        elif not source.is_loose:
            self._overflow(lane)
        return value

    def shift(self, family: str) -> int:
        """0: the clock is real."""
        return 0

    def misfit(self, lane: Lane, source: Source) -> None:
        """No-op: a real value fits."""

    def _overflow(self, lane: Lane) -> None:
        with self._lock:
            is_first = not self._is_full
            self._is_full = True
        if is_first:
            count = config.READS_PENDING_MAX
            self._hole(f"lane {lane.path} read the clock and random sources more than {count} times between two calls")

    def flush(self, lane: Lane) -> str:
        """The values read since the last call, in all lanes: another lane's may be what this call passes on."""
        if not self._pending:
            return ""
        lanes = [lane, *(each for each in list(self._pending) if each is not lane)]
        segments = self._take(lanes)
        for each in lanes:
            if "/" in each.path:  # threads of unknown origin read in the root lane
                left = self._pending.pop(each, None)
                if left:
                    self._put_back(each, left)
        return dump(segments) if segments else ""

    def _put_back(self, lane: Lane, reads: list[tuple[Source, Any]]) -> None:
        with self._lock:
            there = self._pending.setdefault(lane, reads)
            if there is not reads:
                there[:0] = reads

    def continue_from(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Number the values of each (lane, source) after those that were written before."""
        self._before.update(counts)
        self.total += sum(counts.values())

    def describe_pending(self) -> dict[str, dict[str, int]]:
        """Limited to a few lanes with few reads: this is called at the beginning of each unit."""
        found: dict[str, dict[str, int]] = {}
        for lane, reads in list(self._pending.items())[:LANES_MAX]:
            if 0 < len(reads) <= PENDING_MAX:
                counts: dict[str, int] = {}
                for source, _ in list(reads):
                    counts[source.name] = counts.get(source.name, 0) + 1
                found[lane.path] = counts
        return found

    def settle(self) -> None:
        """No-op: a recording has nothing to compare with."""

    def finish(self) -> dict[str, Any]:
        """The manifest's members: how many reads there were, and those that no call carries."""
        segments = self._take(list(self._pending))
        return {"reads": {"count": self.total, "left": segments} if segments else {"count": self.total}}

    def _take(self, lanes: Iterable[Lane]) -> Segments:
        segments: Segments = []
        with self._lock:
            for lane in lanes:
                reads = self._pending.get(lane)
                if reads:
                    count = len(reads)  # values appended meanwhile stay, and a signal handler takes none twice
                    taken, reads[:count] = reads[:count], ()
                    self.total += len(taken)
                    segments.append([lane.path, self._rows(lane, taken)])
        return segments

    def _rows(self, lane: Lane, reads: list[tuple[Source, Any]]) -> list[list[Any]]:
        rows: list[list[Any]] = []
        before: Source | None = None
        last = 0
        written_before = lane.reads = lane.reads or {}
        for source, value in reads:
            written = source.pack(value)
            if source.is_secret:
                written = self._seal(dump(written).encode())
            start = written_before.get(source.name, -1)
            if start < 0:
                start = self._before.get((lane.path, source.name), 0)
            written_before[source.name] = start + 1
            if source is not before:
                rows.append([source.name, start])
                before, last = source, 0
            if source.name.endswith("_ns"):
                written, last = written - last, written
            rows[-1].append(written)
        return rows


def collect(texts: Iterable[str], left: Any) -> dict[tuple[str, str], dict[int, Any]]:
    """(lane, source) → index → written value, from all segments of a recording. Raises: DamagedRecording."""
    found: dict[tuple[str, str], dict[int, Any]] = {}
    try:
        for text in texts:
            _collect(json.loads(text), found)
        _collect(left, found)
    except (ValueError, TypeError, IndexError, AttributeError) as exc:
        raise DamagedRecording("the recorded reads of clock and random sources are damaged") from exc
    return found


def _collect(segments: Any, found: dict[tuple[str, str], dict[int, Any]]) -> None:
    for lane, rows in segments:
        for name, start, *values in rows:
            queue = found.setdefault((str(lane), str(name)), {})
            last = 0
            for index, value in enumerate(values, int(start)):
                if name.endswith("_ns"):
                    value += last
                    last = value
                queue[index] = value


def left_of(manifest: Mapping[str, Any]) -> Any:
    """The segments that a manifest holds."""
    reads = manifest.get("reads")
    return reads.get("left", []) if isinstance(reads, Mapping) else []
