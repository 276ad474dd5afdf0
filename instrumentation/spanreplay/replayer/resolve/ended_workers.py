"""Workers that their pool terminated, perhaps before they began (as a `multiprocessing.Pool`'s `with` block does).

What such a worker's initializer would have done next is unknown. In a replay, the worker waits at that point until its
pool terminates it again, and the pool waits until the worker has made the calls that it made when recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spanreplay.model.call import Outcome
from spanreplay.model.errors import ReplayMiss
from spanreplay.model.lane_names import is_within
from spanreplay.runtime.order.worker_book import RecordedWorkers
from spanreplay.runtime.worker_end import wait_for_end

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord, Recording
    from spanreplay.replayer.index import RecordingIndex
    from spanreplay.replayer.schedule.gate import OrderGate
    from spanreplay.runtime.calls.open_call import Crossing


class EndedWorkers:
    """The lanes of terminated workers and the calls in them, which are those of their initializers."""

    def __init__(self, recording: Recording, index: RecordingIndex) -> None:
        self._lanes = RecordedWorkers(recording.root.manifest).ended
        self._index = index
        self._calls = [call for call in recording.calls if self.holds(call.lane)] if self._lanes else []
        index.covered.update(call.seq for call in self._calls if _is_open(call))

    def holds(self, lane: str) -> bool:
        """Whether a lane is one of those cut short, or lies below one."""
        return any(is_within(lane, each) for each in self._lanes)

    def look(self, crossing: Crossing, gate: OrderGate) -> None:
        """Make the calling thread wait for its end if the worker was terminated before this call.

        Raises: ReplayMiss once the replay has stopped matching the recording.
        """
        if not self.holds(crossing.lane.path):
            return
        call = self._index.at(crossing.lane.path, crossing.boundary, crossing.index)
        if call is not None and not _is_open(call):
            return
        with gate.census.waiting_elsewhere():
            wait_for_end(lambda: gate.is_open)
        raise ReplayMiss("the worker was ended here, and is not now")

    def wait_made(self, pool: str, gate: OrderGate) -> None:
        """Wait until a pool's workers, by its lane, have made the calls that they made before it terminated them."""
        clocks = [call.end_seq for call in self._calls if is_within(call.lane, pool) and not _is_open(call)]
        if clocks:
            gate.wait_until(lambda: all(map(gate.is_over, clocks)), may_be_long=True)


def _is_open(call: CallRecord) -> bool:
    return call.outcome == Outcome.OPEN.value
