"""The extent of a unit's recording in its replay: the process's other work is not part of it."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Final

from spanreplay.model.errors import ReplayMiss
from spanreplay.model.ids import monotonic_ns
from spanreplay.model.lane_names import UNIT_LANE, is_earlier, is_within
from spanreplay.model.levels import level_of_recording
from spanreplay.replayer.compare.findings import place
from spanreplay.replayer.pooled_connections import open_instead, set_up, without_opened
from spanreplay.replayer.resolve.background import Background
from spanreplay.replayer.resolve.launch import Launch
from spanreplay.runtime.calls.returning import RETURNED
from spanreplay.runtime.lanes import note_births

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord, Recording
    from spanreplay.replayer.resolve.shared_state import SharedState
    from spanreplay.replayer.resolve.warm_up import WarmUp
    from spanreplay.runtime.calls.open_call import Crossing
    from spanreplay.runtime.lanes import Lane

__all__ = ["Extent"]

_WAITED_NS: Final = 500_000_000
"""How long a lane has to exist before its first call may belong to the time after the start."""
_never: Final = _thread.allocate_lock()
"""A lock that is never released: waiting for it means waiting for the end of the process."""


class Extent:
    """The part of a process that a replay of one unit repeats, once the process has started."""

    def __init__(
        self,
        session: SharedState,
        in_flight: Container[tuple[str, str, int]] = (),
        *,
        is_start_lost: bool = False,
        warm_up: WarmUp | None = None,
        background: Background | None = None,
        launch: Launch | None = None,
        lasted_ns: int = 0,
    ) -> None:
        """`in_flight`: lane, boundary and number of the calls in progress when the start was over, after `lasted_ns`.

        From now on, lanes note when they are made.
        """
        note_births()
        self._lasted_ns, self._began_ns = lasted_ns, monotonic_ns()
        self._session = session
        self.is_start_lost = is_start_lost
        self.in_flight = in_flight
        self._is_open = "timers" not in level_of_recording(session.recording.root)
        self._woken = frozenset[str]() if self._is_open else _find_woken(session.recording)
        self.warm_up = warm_up
        """The units that are replayed before the judged one; None if there are none."""
        self.lane = UNIT_LANE
        """The root lane of the unit that is being replayed."""
        if warm_up is not None:
            warm_up.on_enter = self._enter
        self.background = background or Background()
        """Answers the calls of background tasks while the unit runs."""
        self.launch = launch or Launch()
        """Answers what a program does before it starts the process that serves the unit."""
        self.has_started = False
        """Whether the start of the process is over."""
        self.begin_files: Callable[[], object] = lambda: None
        """Places what the unit finds where the start has made something."""
        self.of_start: dict[str, int] = {}
        """How the calls of the start were resolved, once it is over."""
        self.is_over = False
        """Whether the unit has returned its output: later calls of its tasks may come after the recorded end."""
        self.is_beside_main = False
        """Whether another thread works on the unit, so that the main thread may pass the start before it is over."""

    def _enter(self, lane: str) -> None:
        """Switch to another unit."""
        self.lane, self.is_over = lane, False
        self._session.resolved = 0

    def has_in_flight(self) -> bool:
        """Whether calls were in progress when the start was over."""
        return bool(self.in_flight)

    def note_started(self) -> None:
        """Note that the start of the process is over: the unit counts its calls from 1."""
        self.has_started = True
        self.begin_files()
        self.of_start = dict(self._session.counts)
        self._session.resolved = 0

    def is_outside(self, lane: str) -> bool:
        """Whether a lane belongs to a background task, which continues after the start for as long as the process."""
        return self.has_started and not is_within(lane, self.lane)

    def is_beside(self, lane: str) -> bool:
        """Whether the reads of a lane are in the run of the process."""
        return self.is_outside(lane) or lane in self.background.strays

    def is_awaited(self, lane: str) -> bool:
        """Whether the calls of a lane are expected now: those of the start, and of one unit."""
        return is_within(lane, self.lane) if is_earlier(self.lane) else not is_earlier(lane)

    def may_run_on(self, lane: str) -> bool:
        """Whether a task may have got further than at the end of the start.

        Either its timers were not recorded, or its last timer had just woken it: on a busy machine, the timer and the
        first request may come in the same loop iteration, and the start is over before the task takes its next step.
        """
        if is_within(lane, self.lane) or is_earlier(lane):
            return False
        if not self._is_open and lane not in self._woken:
            return False
        return lane not in (self._session.recording.root.manifest.get("lane_ends") or {})

    def is_past_start(self, lane: Lane, is_known: bool) -> bool:
        """Whether what a lane does now came after the start when recorded, so that the recording can't contain it.

        `is_known`: whether the recording has something of the kind in the lane. If not, the lane must be `_WAITED_NS`
        old, and the start longer than when recorded: one whose thread looks at something every 10 s takes 12 s now.
        """
        now = monotonic_ns()
        is_late = 0 < self._lasted_ns < now - self._began_ns and now - lane.born_ns > _WAITED_NS
        return (is_known or (is_late and "/" in lane.path)) and self.may_run_on(lane.path)

    def hold(self) -> None:
        """Stop the main thread at the end of the unit's recording, if another thread works on the unit."""
        if self.is_beside_main and threading.current_thread() is threading.main_thread():
            with self._session.gate.census.waiting_elsewhere():
                _never.acquire()
                _never.acquire()

    def takes(self, crossing: Crossing) -> bool:
        """Whether a call lies beyond the unit and was answered. Raises: ReplayMiss if the process has no answer."""
        if not self.has_started and self.launch.serve(self._session, crossing):
            return True
        if not self.is_beyond(crossing):
            return self.has_started and is_within(crossing.lane.path, self.lane) and set_up(self._session, crossing)
        if self.is_outside(crossing.lane.path) and self.background.serve(self._session, crossing):
            return True
        self.hold()
        raise ReplayMiss(f"this is not a call of the unit that is replayed: {place(crossing)}")

    def serve_stray(self, crossing: Crossing) -> bool:
        """Answer a call that another unit made when recorded, because a connection or task existed already."""
        lane = crossing.lane.path
        if self.has_started and is_within(lane, self.lane) and open_instead(self._session, crossing):
            return True
        is_known = lane == self.lane or any(call.lane == lane for call in self._session.recording.calls)
        if is_known or is_earlier(lane):
            return False
        return is_within(lane, self.lane) and self.background.serve_stray(self._session, crossing)

    def awaited(self, left: list[CallRecord]) -> list[CallRecord]:
        """Return the expected calls among the recorded ones that were not made."""
        left = [call for call in left if self.is_awaited(call.lane)]
        return without_opened(left, self._session.recording.calls, self._session.index.used)

    def is_beyond(self, crossing: Crossing) -> bool:
        """Whether a call doesn't belong to the unit, so that the recording can't contain it."""
        lane = crossing.lane.path
        slot = (lane, crossing.boundary, crossing.index)
        if is_earlier(lane) and not is_within(lane, self.lane):  # a task left behind by an earlier unit
            return self._session.index.find_exact(slot, crossing.key_hex, crossing.spec.call_id) is None
        if self.is_outside(lane) or slot in self.in_flight:
            return True
        if self.is_beside_main and not is_within(lane, self.lane) and self._session.index.at(*slot) is None:
            return True
        if self._session.index.at(*slot) is None and self.is_past_start(crossing.lane, crossing.index > 0):
            return True
        if self.is_start_lost and not is_within(lane, UNIT_LANE):
            self._session.has_reached_frontier = self._session.is_stopped = True
            return True
        return self.is_over and self._session.index.at(*slot) is None


def _find_woken(recording: Recording) -> frozenset[str]:
    """Return the lanes of tasks and threads whose last recorded event is a timer that woke them."""
    timers = recording.root.manifest.get("timers")
    woken: dict[str, int] = {}
    for name, clocks in timers.items() if isinstance(timers, dict) else ():
        if RETURNED not in name and isinstance(clocks, list) and clocks and isinstance(clocks[0], int):
            lane = str(name).partition("|")[0]
            woken[lane] = max(woken.get(lane, 0), clocks[0])
    for call in recording.calls:
        if woken.get(call.lane, 0) < max(call.seq, call.end_seq):
            woken.pop(call.lane, None)
    return frozenset(lane for lane in woken if "/" in lane)
