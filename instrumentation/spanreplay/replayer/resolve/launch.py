"""What a program did before it started the process that served a unit: a replay does both in one process.

A reloader, a command line or a script reads its settings and then starts the serving process, whose recording has a
start of its own. In the replay the program serves by itself. What it does before has no place in that start: each such
call is answered by its request, at most as often as it was made. What it reads from clocks and random sources is what
it read behind that call, until it makes a call of the serving process, or what that process has not read.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spanreplay.model.call import CallRecord, Outcome
from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.reads import collect

if TYPE_CHECKING:
    from spanreplay.replayer.resolve.shared_state import SharedState
    from spanreplay.runtime.calls.open_call import Crossing

__all__ = ["Launch"]


class Launch:
    """Serves the calls and reads of the processes above the one that served a unit. Thread-safe."""

    def __init__(self, calls: Iterable[CallRecord] = (), left: Any = ()) -> None:
        """`calls`: all of these processes; `left`: the reads that none of them carries. Raises: DamagedRecording."""
        self._calls = defaultdict[tuple[str, str], deque[CallRecord]](deque)
        self._reads = defaultdict[tuple[str, str], deque[tuple[float, Any]]](deque)
        """(lane, source) → the tick of the call that carries a value, and the value."""
        self._ends = defaultdict[str, list[float]](list)
        """Lane → the ticks of the calls that carry its values."""
        self._behind: dict[str, float] = {}
        """Lane → the tick of the call that carries what it reads now, behind a call of the launch."""
        self._lock = make_lock()
        for call in calls:
            if call.outcome != Outcome.OPEN.value:
                self._calls[call.boundary, call.key].append(call)
            self._add(call.seq, collect([call.reads] if call.reads else (), ()))
        self._add(math.inf, collect((), left))

    def _add(self, tick: float, found: dict[tuple[str, str], dict[int, Any]]) -> None:
        for (lane, source), values in found.items():
            self._reads[lane, source] += [(tick, values[at]) for at in sorted(values)]
            self._ends[lane].append(tick)

    def serve(self, session: SharedState, crossing: Crossing) -> bool:
        """Answer a call that the start of the serving process does not have in this place; return whether it did."""
        if not self._calls:
            return False
        lane, boundary = crossing.lane, crossing.boundary
        slot = (lane.path, boundary, crossing.index)
        with self._lock:
            self._behind.pop(lane.path, None)
            if session.index.find_exact(slot, crossing.key_hex, crossing.spec.call_id) is not None:
                return False
            found = self._find(session, crossing)
            if not found:
                return False
            call = found.popleft()
            self._go_behind(lane.path, call.seq)
        lane.take_back(boundary, crossing.index)
        crossing.served = session.hidden.reveal(crossing, replace(call, clocks=(), end_seq=-1, joint=-1))
        crossing.paired = crossing.served
        session.counts["beside"] = session.counts.get("beside", 0) + 1
        return True

    def read_behind(self, lane: str, source: str) -> tuple[Any, ...]:
        """Return what a lane read behind the call of the launch that it has just made, in its written form, or ()."""
        if lane not in self._behind:
            return ()
        with self._lock:
            values = self._reads.get((lane, source))
            return (values.popleft()[1],) if values and values[0][0] == self._behind[lane] else ()

    def read(self, lane: str, source: str) -> tuple[Any, ...]:
        """Return the next value of a source in a lane, in its written form; () if there is none."""
        with self._lock:
            values = self._reads.get((lane, source))
            return (values.popleft()[1],) if values else ()

    def _go_behind(self, lane: str, tick: int) -> None:
        """Pass what a lane had read before a call, and note the call that carries what it read then."""
        for (of, _), values in self._reads.items():
            while of == lane and values and values[0][0] <= tick:
                values.popleft()
        self._behind[lane] = next((end for end in self._ends[lane] if end > tick), math.inf)

    def _find(self, session: SharedState, crossing: Crossing) -> deque[CallRecord] | None:
        found = self._calls.get((crossing.boundary, crossing.key_hex))
        if not found and session.relocation and crossing.restate(session.relocation.spec):
            found = self._calls.get((crossing.boundary, crossing.key_hex))
        return found
