"""Work that a process's tasks and threads do for one of its units, served to the unit's replay from the process's run.

A request may put its text into a queue and wait: a task that has run since the process started calls the model, and is
in the recording of the process. In the replay of the request, that task works again. Its calls have no place in the
unit's order: each is served by its request, as often as it was made while the unit ran.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.call import CallRecord, Outcome, Recording
from spanreplay.model.lane_names import UNIT_LANE, is_earlier
from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.reads import Source, collect, left_of

if TYPE_CHECKING:
    from spanreplay.replayer.resolve.shared_state import SharedState
    from spanreplay.runtime.calls.open_call import Crossing

__all__ = ["Background", "Past"]

_REFUSED: Final = "the unit waits, perhaps for work beside it: {}, which nothing of its process had asked while it ran"
_STARVED: Final = "the unit waits, perhaps for work beside it: {} was made while it ran, and is not now"
_LOST: Final = "what a task beside the unit read of clock and random sources behind {} is not written yet"
_STRAY: Final = (
    "{} was made by a task that an earlier unit had started, and now by one of this unit: "
    "`spanreplay replay --warm all` replays it with that unit"
)
_UNKNOWN: Final = "while no message came, the loop made a call that has no answer in the run of its process: {}"
_IDLE_MAX: Final = 5_000
"""How many calls of a loop that waits for its message are answered."""
_GUESSED: Final = "what a task beside the unit drew before {} may be another unit's"


@dataclass(frozen=True)
class Past:
    """The run of the process that a unit ran in, and when the unit ran."""

    process: Recording
    begin_ns: int
    end_ns: int
    pending: Mapping[str, Mapping[str, int]]
    """Lane → source → the number of values read since the lane's last call, when the unit began."""
    is_loop: bool = False
    """Whether the unit is a message of a loop, which makes calls of its own while none comes."""


class Background:
    """Serves the calls of background tasks. Thread-safe."""

    def __init__(self, load: Callable[[], Past | None] = lambda: None) -> None:
        """`load` returns the run of the process on demand; None if it is not available here."""
        self.refused = ""
        """The first background call that the recording doesn't contain; '' if none."""
        self.doubt = ""
        """Why a difference is not the program's fault; '' if it is."""
        self.strays: set[str] = set()
        """Lanes of the unit that do the work of earlier units' tasks."""
        self._load: Callable[[], Past | None] | None = load
        self._calls: dict[tuple[str, str], deque[CallRecord]] = {}
        self._idle: dict[tuple[str, str], CallRecord] = {}
        """The calls that a loop made while no message came: the last of each before the unit, or the first after it."""
        self._idle_count = 0
        self._is_loop = False
        self._reads: _Reads | None = None
        self._last: dict[str, CallRecord] = {}
        """Lane → the last call that it was served."""
        self._lock = make_lock()

    def serve(self, session: SharedState, crossing: Crossing) -> bool:
        """Answer a background task's call; return whether there is an answer."""
        with self._lock:
            call = self._find(session, crossing)
            if call is None:
                name = _name(crossing.boundary, crossing.lane.path, crossing.code)
                self.refused = self.refused or _REFUSED.format(name)
                if self._is_loop:
                    self._doubt(session, _UNKNOWN.format(name))
                return False
            if not self._answer(session, crossing, call):
                self._doubt(session, _GUESSED.format(_name(call.boundary, call.lane, call.code)))
        return True

    def serve_stray(self, session: SharedState, crossing: Crossing) -> bool:
        """Answer the call from a lane of the unit itself; such a unit is not called identical."""
        with self._lock:
            call = self._find(session, crossing)
            if call is None:
                return False
            self._answer(session, crossing, call)
            self.strays.add(crossing.lane.path)
            self._doubt(session, _STRAY.format(_name(call.boundary, call.lane, call.code)))
            session.stopped = session.stopped or self.doubt
        return True

    def read(self, session: SharedState, lane: str, source: Source) -> tuple[Any, ...]:
        """Return the next value that a lane reads from a source, in its written form; () if it was not recorded.

        Clocks follow the unit until the lane has made a call for it.
        """
        last = self._last.get(lane)
        if last is None and source.to_ns is not None:
            return ()
        with self._lock:
            self._read()
            if self._reads is None:
                return ()
            found = self._reads.next(lane, source)
        if not (found or last is None or source.is_loose) and self._reads.is_cut(last):
            self._doubt(session, _LOST.format(_name(last.boundary, last.lane, last.code)))
        return found

    def wait_in_vain(self, session: SharedState) -> None:
        """Note that the unit waits forever, perhaps for a task without an answer, or one that waits for other units."""
        with self._lock:
            self._read()
            left = next((found[0] for found in self._calls.values() if found), None)
        why = "" if left is None else _STARVED.format(_name(left.boundary, left.lane, left.code))
        self._doubt(session, self.refused or why)

    def _find(self, session: SharedState, crossing: Crossing) -> CallRecord | None:
        self._read()
        call = self._take(crossing)
        if call is None and session.relocation and crossing.restate(session.relocation.spec):
            return self._take(crossing)
        return call

    def _answer(self, session: SharedState, crossing: Crossing, call: CallRecord) -> bool:
        """Serve the call; return whether the values drawn before it are those drawn when recorded."""
        crossing.served = session.hidden.reveal(crossing, replace(call, clocks=(), end_seq=-1, joint=-1))
        crossing.paired = crossing.served
        session.counts["beside"] = session.counts.get("beside", 0) + 1
        self._last[crossing.lane.path] = call
        return self._reads is None or self._reads.go_on_behind(crossing.lane.path, call)

    def _take(self, crossing: Crossing) -> CallRecord | None:
        found = self._calls.get((crossing.boundary, crossing.key_hex))
        if not found:
            return self._find_idle(crossing)
        call = next((each for each in found if each.lane == crossing.lane.path), found[0])
        found.remove(call)
        return call

    def _find_idle(self, crossing: Crossing) -> CallRecord | None:
        """Return a call of the loop; none for a program that waits so long that its message won't come."""
        call = self._idle.get((crossing.boundary, crossing.key_hex))
        self._idle_count += call is not None
        return call if self._idle_count <= _IDLE_MAX else None

    def _read(self) -> None:
        load, self._load = self._load, None
        past = None if load is None else load()
        if past is None:
            return
        found = defaultdict[tuple[str, str], deque[CallRecord]](deque)
        for call in past.process.calls:
            if past.begin_ns <= call.start_ns <= past.end_ns and call.outcome != Outcome.OPEN.value:
                found[call.boundary, call.key].append(call)
        self._calls = found
        self._is_loop = past.is_loop
        if past.is_loop:
            ended = [call for call in past.process.calls if call.outcome != Outcome.OPEN.value]
            before = [call for call in ended if call.start_ns < past.begin_ns]
            self._idle = {(call.boundary, call.key): call for call in (*ended[::-1], *before)}
        self._reads = _Reads(past)

    def _doubt(self, session: SharedState, why: str) -> None:
        if not session.divergences:
            self.doubt = self.doubt or why


def _name(boundary: str, lane: str, code: str) -> str:
    return f"{boundary} (lane {lane}), {code}" if code else f"{boundary} (lane {lane})"


class _Reads:
    """The values that each lane of a process has read, and the calls that carry them."""

    def __init__(self, past: Past) -> None:
        calls, left = past.process.calls, left_of(past.process.root.manifest)
        self._past = past
        self._values = collect((call.reads for call in calls if call.reads), left)
        self._ends: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
        for call in calls:
            for lane, rows in json.loads(call.reads) if call.reads else ():
                self._ends[str(lane)] += [
                    (call.start_ns, str(name), int(at) + len(values)) for name, at, *values in rows
                ]
        self._newest = {call.lane: call.start_ns for call in calls}
        self._is_ended = bool(past.process.root.manifest)
        self._lanes: dict[str, tuple[str, dict[str, int]]] = {}
        """Lane of the replay → lane of the recording, and how many values of each source have been passed."""
        self._drawn: dict[str, set[str]] = defaultdict(set)
        """Lane of the replay → the sources it has read since its last call."""

    def go_on_behind(self, lane: str, call: CallRecord) -> bool:
        """Move a lane to a recorded call: its next reads are those recorded after that call.

        Returns whether its reads since its last call are those that were made before this one.
        """
        counts = self._count(call.lane, call.start_ns)
        recorded, before = self._lanes.get(lane, (call.lane, counts))
        drawn = self._drawn.pop(lane, set())
        self._lanes[lane] = call.lane, counts
        return not drawn or (recorded == call.lane and all(before[name] == counts[name] for name in drawn))

    def next(self, lane: str, source: Source) -> tuple[Any, ...]:
        """Return the next value of a source in a lane of the replay; () if there is none."""
        name = source.name
        if source.to_ns is None and not source.is_loose:
            self._drawn[lane].add(name)
        if lane not in self._lanes:
            self._lanes[lane] = self._begin(lane)
        recorded, counts = self._lanes[lane]
        found = self._values.get((recorded, name), {})
        at = counts[name]
        counts[name] += 1
        return (found[at],) if at in found else ()

    def is_cut(self, call: CallRecord) -> bool:
        """Whether the lane's reads between this call and its next one may not have been written yet."""
        return not self._is_ended and self._newest[call.lane] <= call.start_ns

    def _begin(self, lane: str) -> tuple[str, dict[str, int]]:
        """Return the recorded name of a lane, and its read counts when the unit began."""
        if is_earlier(lane):  # a thread left behind by an earlier unit: the process has its later reads
            recorded = UNIT_LANE + lane[len(lane.partition("/")[0]) :]
            return recorded, self._count(recorded, 0)
        counts = self._count(lane, self._past.begin_ns)
        for each, count in self._past.pending.get(lane, {}).items():
            counts[each] += count
        return lane, counts

    def _count(self, lane: str, at_ns: int) -> defaultdict[str, int]:
        counts = defaultdict[str, int](int)
        counts.update({name: min(found) for (of, name), found in self._values.items() if of == lane and found})
        for carried_ns, name, end in self._ends.get(lane, ()):
            if carried_ns <= at_ns:
                counts[name] = max(counts[name], end)
        return counts
