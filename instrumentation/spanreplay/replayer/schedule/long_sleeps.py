"""A background thread that was asleep when the recorded run ended doesn't wake up in its replay either.

Sleeps in a replay are short. A library that retries something after a minute, in a daemon thread, would do so while the
rest of the program still runs, and make a call that the recording can't contain.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from spanreplay.replayer.schedule.stall_detector import STALL_MS
from spanreplay.runtime.caller.caller import handed
from spanreplay.runtime.lanes import current_lane, has_lane
from spanreplay.runtime.run import active_run

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord, Recording
    from spanreplay.runtime.order.order import Order

_LOOK_S: Final = 0.05
_MORE_S: Final = 60.0
"""How much longer than requested such a sleep may last: a replay may be slower than its recording."""
_LOOKS_S: Final = 1.0
"""A library's own thread that sleeps no longer than this looks for something now and then: others may wait for it."""
_NS: Final = 1e9
_sleep: Final = inspect.unwrap(time.sleep)


class LongSleeps:
    """The end of the last call of each lane, and of the recorded run."""

    def __init__(self, calls: Iterable[CallRecord], began_ns: int, ended_ns: int) -> None:
        self._began_ns, self._ended_ns = began_ns, ended_ns
        self._last: dict[str, tuple[int, int]] = {}
        for call in calls:
            self._last[call.lane] = max(self._last.get(call.lane, (0, 0)), (call.end_ns, call.end_seq))
        self._slept_s: dict[str, float] = {}

    @classmethod
    def of(cls, recording: Recording) -> LongSleeps:
        """Build them from a recorded process."""
        return cls(recording.calls, recording.root.start_ns, recording.root.end_ns)

    def hold(self, gate: Order, seconds: float) -> None:
        """Keep a daemon thread asleep whose sleep outlasted the recorded run, until nothing else moves."""
        run = active_run()
        if run is None or not threading.current_thread().daemon or not has_lane() or self._ended_ns <= 0:
            return
        lane = current_lane(run.root_lane).path
        last_ns, clock = self._last.get(lane, (self._began_ns, -1))
        if clock >= 0 and not gate.is_over(clock):
            return
        if clock < 0 and seconds <= _LOOKS_S and handed.is_background:
            return
        self._slept_s[lane] = self._slept_s.get(lane, 0.0) + seconds
        if last_ns + self._slept_s[lane] * _NS <= self._ended_ns:
            return
        until, quiet_s = time.monotonic() + seconds + _MORE_S, 0.0
        with gate.census.waiting_elsewhere():
            while not gate.is_open and time.monotonic() < until and quiet_s < STALL_MS / 1000:
                _sleep(_LOOK_S)
                quiet_s = quiet_s + _LOOK_S if gate.working_threads <= 0 else 0.0
