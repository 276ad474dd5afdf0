"""Completion order: a replay releases results in the order in which they were recorded.

Every recorded completion (and every chunk of a stream) carries a Lamport clock value. The gate walks through them: a
result may go out when every earlier completion has gone out, was cancelled, or lies inside a call that was served
whole. A call that finished earlier in the recording was started without needing the result that waits now, so waiting
for it can't deadlock an unchanged program. A changed program may never make that call; so if nothing else moves, the
wait ends and the missing completion is skipped.

Threads wait on a condition. Tasks wait until the event loop has nothing left to do (see `virtual_time`): only then is
the next result released, so a task that waits for one result has reacted to it before the next one arrives.
"""

from __future__ import annotations

import posix  # os.getpid is a recorded read
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.call import CallRecord, Outcome
from spanreplay.model.errors import ReplayMiss
from spanreplay.replayer.schedule.arrivals import Arrivals
from spanreplay.replayer.schedule.greenlets import Greenlets
from spanreplay.replayer.schedule.pace import Steps, find_threads
from spanreplay.replayer.schedule.sent_signals import SentSignals
from spanreplay.replayer.schedule.stall_detector import (
    LOOK_MS,
    REACTION_MS,
    STALL_AWAITED_MS,
    STALL_MS,
    Reaction,
    StallDetector,
    hang_ms,
)
from spanreplay.replayer.schedule.thread_census import ThreadCensus
from spanreplay.replayer.schedule.thread_waits import PENDING, cancel_rest, find_cancelled, read_waits
from spanreplay.replayer.schedule.worker_watch import relieve
from spanreplay.runtime.lanes import HANDED_OVER
from spanreplay.runtime.order.counted import TurnCondition, counted, nothing
from spanreplay.runtime.order.hubs import running_hub
from spanreplay.runtime.order.loops import BEGUN, running_loop

if TYPE_CHECKING:
    from spanreplay.runtime.processes import ProcessGroup

_NO_CALL: Final = -1
_LATE_MAX: Final = 20
_FROM_POOL: Final = "/px:"
_SHARED_POLL_S: Final = 0.002
"""How often to check whether another process has moved on; it can't wake us."""
_OF_RECORDING: Final = (
    *("lane_ends", "timers", "handed_over", "steps", "waits", "cancelled"),
    *("_threads", "_events", "_joint", "_seqs", "_is_covered"),
)
"""The attributes of a gate that depend on its recording alone."""


class OrderGate:
    """Walks through the recorded completions; thread-safe.

    `is_covered` tells whether a recorded call lies inside a served call and therefore never completes by itself.
    """

    def __init__(
        self,
        calls: Iterable[CallRecord],
        is_covered: Callable[[int], bool],
        lane_ends: Mapping[str, int] | None = None,
        timers: Mapping[str, Sequence[int]] | None = None,
        steps: Steps | None = None,
    ) -> None:
        finished = [call for call in calls if call.outcome != Outcome.OPEN.value]
        events = [(clock, call.seq) for call in finished for clock in (*call.clocks, call.end_seq) if clock >= 0]
        last_of_lane = {call.lane: call.seq for call in finished}
        # A lane inside a served call never ends by itself: its calls decide
        self.lane_ends = {
            lane: clock for lane, clock in (lane_ends or {}).items() if lane in last_of_lane or _FROM_POOL in lane
        }
        events += [(clock, last_of_lane.get(lane, _NO_CALL)) for lane, clock in self.lane_ends.items()]
        self.timers = None if timers is None else {name: fired[0] for name, fired in timers.items()}
        """Name → clock of every timer that fired; None if the recording does not say."""
        self.handed_over = frozenset(clock for name, clock in (self.timers or {}).items() if HANDED_OVER in name)
        """Clocks of the callbacks that other threads scheduled on an event loop."""
        self._threads = find_threads(finished, self.lane_ends, self.timers or {})
        events += [(clock, _NO_CALL) for name, clock in (self.timers or {}).items() if not name.endswith(BEGUN)]
        self.steps = steps or Steps()
        events += [(clock, _NO_CALL) for clock in self.steps.pauses]
        of_loops = ((clock, self._threads.get(self.steps.following[clock][0])) for clock in self.steps.pauses)
        self._threads.update({clock: thread for clock, thread in of_loops if thread is not None})
        self._events = sorted(events)
        self._joint = {call.end_seq: call.joint for call in finished if call.joint >= 0}
        self._joint.update({fired[0]: fired[1] for fired in (timers or {}).values() if fired[1] >= 0})
        self.waits = read_waits(self.timers)
        self.cancelled = find_cancelled(self.waits)
        """Lanes of pool futures that were cancelled before they began."""
        self._shut: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._seqs = dict(self._events)
        self._is_covered = is_covered
        self._head = 0
        self._gone: set[int] = set()
        self._condition = TurnCondition()
        self._reacting: set[int] = set()
        """Idents of the threads whose turn has come, but which still let others react first."""
        self._listeners: list[Callable[[], None]] = []
        self.census = ThreadCensus(self._condition, self._state_working, gate=self)
        self.greenlets = Greenlets(self)
        self.sent = SentSignals(self, finished)
        self._moves = 0
        self._delivering = 0
        self._is_open = False
        self.lasted_s = 0.0
        """How long the recorded run took."""
        self.is_live = False
        """Whether the run has continued past its recording; time is real from there on."""
        self._shared: ProcessGroup | None = None
        self._arrivals: Arrivals | None = None
        self._got_on: tuple[tuple[int, int], float] = ((0, 0), 0.0)
        """The last progress seen and when, for event loops that wait for a process."""
        self._pid = posix.getpid()
        self.skipped: list[int] = []
        """Clocks of the completions that were skipped because they never came."""
        self.late: list[tuple[int, str]] = []
        """Ends of calls (clocks) that the program's own limits would bring at another time now, and why."""
        self.on_stall: Callable[[], BaseException] | None = None
        """Records that the program waits forever, and returns the exception to raise there."""
        self.stalled: str | None = None
        """Why threads no longer wait, once the program has turned out to be stuck."""

    def note_late(self, clock: int, why: str) -> None:
        """Keep an end that the program's own limits would bring at another time now."""
        if len(self.late) < _LATE_MAX:
            self.late.append((clock, why))

    # ── what completed ──────────────────────────────────────────────────────────────────────────────
    def complete(self, *clocks: int) -> None:
        """Mark these completions as gone out and wake whatever waits for them."""
        with self._condition:
            if running_loop() is None and any(clock >= 0 for clock in clocks):
                counted.is_timed = False
                self.census.note_told()
            for clock in clocks:
                if clock >= 0:
                    self._gone.add(clock)
                if self._shared is not None:
                    self._shared.mark_gone(clock)
            self._advance()
            if self.census.is_any_waiting:
                self._condition.notify_all()
            listeners = list(self._listeners) if self._listeners else ()
        for listener in listeners:
            listener()
        self.sent.look()

    def cover(self, calls: Iterable[CallRecord]) -> None:
        """Mark calls inside a served call as gone out, for the other processes of the run."""
        clocks = () if self._shared is None else (clock for call in calls for clock in (*call.clocks, call.end_seq))
        self.complete(*clocks)

    def open(self) -> None:
        """End all ordering: the replay has stopped matching the recording."""
        with self._condition:
            self._is_open = True
            if self._shared is not None and self._pid == posix.getpid():
                self._shared.state_open()
            self._condition.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def go_live(self) -> None:
        """End all ordering and virtual time: the rest of the run was not recorded."""
        self.is_live = True
        self.open()

    def restart(self, clock: int) -> None:
        """Resume ordering at this clock; earlier completions are no longer expected."""
        with self._condition:
            self._is_open, self.stalled = False, None
            while self._head < len(self._events) and self._events[self._head][0] < clock:
                self._gone.discard(self._events[self._head][0])
                self._head += 1
            self._condition.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def extend(self, longer: OrderGate, clock: int) -> None:
        """Take over the completions of a longer recording after this clock, in a newly forked process."""
        for name in _OF_RECORDING:
            setattr(self, name, getattr(longer, name))
        self.sent.extend(longer.sent)
        self._pid, self._head, self._gone = posix.getpid(), 0, set()
        is_open, stalled = self._is_open, self.stalled
        self.restart(clock + 1)
        self._is_open, self.stalled = is_open, stalled

    def _advance(self) -> None:
        events, gone, is_covered, shared = self._events, self._gone, self._is_covered, self._shared
        while self._head < len(events):
            clock, seq = events[self._head]
            if clock in gone:
                gone.discard(clock)
            elif not is_covered(seq) and (shared is None or not shared.is_gone(clock)):
                return
            self._head += 1

    def is_covered(self, seq: int) -> bool:
        """Whether a recorded call lies inside a served call."""
        return self._is_covered(seq)

    def is_turn(self, clock: int) -> bool:
        """Whether everything before this completion has gone out."""
        with self._condition:
            return self._is_turn(clock)

    def is_over(self, clock: int) -> bool:
        """Whether this completion has gone out, or never will by itself."""
        with self._condition:
            self._advance()
            is_behind = self._head >= len(self._events) or clock < self._events[self._head][0]
            seq = self._seqs.get(clock, _NO_CALL)
            is_gone_elsewhere = self._shared is not None and self._shared.is_gone(clock)
            return is_behind or clock in self._gone or self._is_covered(seq) or is_gone_elsewhere

    def comes_from_elsewhere(self, thread: str) -> bool:
        """Whether the next completion must come from a thread (or process) other than this one."""
        with self._condition:
            self._advance()
            is_behind = self._is_open or self._head >= len(self._events)
            return not is_behind and self._threads.get(self._events[self._head][0], "") != thread

    @property
    def is_open(self) -> bool:
        """Whether ordering has ended."""
        return self._is_open or (self._shared is not None and self._shared.is_open)

    def _is_turn(self, clock: int) -> bool:
        if self._shared is not None and not self._is_open and self._shared.is_open:
            self.open()
        if self._is_open or clock < 0:
            return True
        self._advance()
        return self._head >= len(self._events) or clock <= self._events[self._head][0]

    def is_joint(self, first: int, clock: int) -> bool:
        """Whether a completion came in the same loop iteration as an earlier one."""
        return self._joint.get(clock, clock) == self._joint.get(first, first)

    def skip_before(self, clock: int) -> None:
        """Skip every completion that should have come before this one."""
        with self._condition:
            while not self._is_turn(clock):
                late, _ = self._events[self._head]
                self.skipped.append(late)
                self._gone.add(late)
                self._advance()
            self._condition.notify_all()

    # ── processes ───────────────────────────────────────────────────────────────────────────────────
    def share(self, shared: ProcessGroup) -> None:
        """Walk through the completions together with the other processes of the run, from now on."""
        last = self._events[-1][0] if self._events else 0
        shared.share_order(last)
        with self._condition:
            for clock, _ in self._events[: self._head]:
                shared.mark_gone(clock)
            for clock in self._gone:
                shared.mark_gone(clock)
            self._shared, self._arrivals = shared, Arrivals(shared)
            self._state_working()

    def join(self, shared: ProcessGroup, *, is_worker: bool) -> None:
        """Start afresh in a newly started process."""
        self._pid = posix.getpid()
        self._condition, self._reacting = TurnCondition(), set()
        self._listeners = []
        self.greenlets = Greenlets(self)
        self.sent.leave_out()
        self.census = ThreadCensus(self._condition, self._state_working, gate=self, busy=0 if is_worker else 1)
        self._delivering = 0
        self.share(shared)

    @property
    def _is_awaited(self) -> bool:
        return self._shared is not None and not self.skipped and self._shared.is_awaited

    @property
    def _arrived(self) -> int:
        return 0 if self._arrivals is None else self._arrivals.count_steps()

    def waits_for_process(self, waited_s: float) -> bool:
        """Whether another process is still to start or to answer, after a wait this long that is not yet too long."""
        now, moved = time.monotonic(), (self._head, self._arrived)
        if moved != self._got_on[0]:
            self._got_on = (moved, now)
        return self._is_awaited and now - max(now - waited_s, self._got_on[1]) < STALL_AWAITED_MS / 1000

    def _state_working(self) -> None:
        if self._shared is not None:
            self._shared.state_working(self.census.working)

    @property
    def _look_ms(self) -> float:
        return LOOK_MS if self._shared is None else _SHARED_POLL_S * 1000

    def _pause(self, seconds: float) -> None:
        self._state_working()
        if self._shared is not None and not self._is_open and self._shared.is_open:
            self.open()
        self._condition.wait(seconds if self._shared is None else min(seconds, _SHARED_POLL_S))

    # ── threads ─────────────────────────────────────────────────────────────────────────────────────
    def wait_turn(self, clock: int, others_s: float = REACTION_MS / 1000) -> None:
        """Block the calling thread until it is this completion's turn, or nothing else moves any more.

        `others_s`: how long other threads may keep working once the turn has come.

        Not for a thread that runs an event loop: the completion it waits for may come from a task of that loop.
        """
        if self._pid != posix.getpid():
            return  # newly forked: it has not joined the run yet, and may never
        if (hub := running_hub()) is not None:
            self.greenlets.wait_turn(hub, clock)
            return
        self.census.join()
        if self.census.size <= 1 and self._shared is None:
            return
        with self._condition, self.census.waiting():
            try:
                self._block(clock, min(others_s, REACTION_MS / 1000))
            finally:
                self._reacting.discard(threading.get_ident())

    @property
    def is_turn_taken(self) -> bool:
        """Whether a thread has its turn and only waits for others to react to the previous completion."""
        return bool(self._reacting)

    @property
    def head(self) -> tuple[int, int]:
        """The number of completions that have gone out in order, and the call of the next one (-1: none)."""
        with self._condition:
            self._advance()
            ahead = range(self._head, len(self._events))
            return self._head, next((self._events[at][1] for at in ahead if self._events[at][1] != _NO_CALL), _NO_CALL)

    def is_quiet(self, clock: int) -> bool:
        """Whether it is this completion's turn and no working thread could still complete something earlier."""
        with self._condition:
            return self._is_turn(clock) and self.working_threads <= 1  # the calling one

    def wait_long(self, wait: Callable[[float], bool]) -> None:
        """Wait without a limit; `wait` takes seconds and returns whether the event has happened.

        Raises: the exception that `on_stall` returns, in the main thread, once nothing has moved for HANG_MS while
        every thread was waiting. The other threads then raise ReplayMiss, so that the process can end.
        """
        since, head = time.monotonic(), (self.head, self._arrived)
        is_main = threading.current_thread() is threading.main_thread()
        while not wait(STALL_MS / 1000):
            now = time.monotonic()
            if self._shared is not None:
                self._look_at_processes(self._shared)
            if self.stalled is not None:
                raise ReplayMiss(self.stalled)
            if not is_main or self.working_threads > 0 or self.is_live or self.on_stall is None:
                since = now
            elif (moved := (self.head, self._arrived)) != head:
                since, head = now, moved
            elif now - since >= max(hang_ms(), STALL_AWAITED_MS if self._is_awaited else 0) / 1000:
                if relieve(self):
                    since = now
                    continue
                raise self.on_stall()

    def _look_at_processes(self, shared: ProcessGroup) -> None:
        """Detect waits that can't end: for a process that has ended, or a pool whose workers end before they begin."""
        shared.forget_ended()
        if shared.has_missed and self.stalled is None:
            self.stalled = "a worker process ended at a call that has no answer, before it took an item"
            self.open()

    def wait_lane(self, lane: str) -> None:
        """Block until it is the turn of a lane to end; return immediately in a thread that runs an event loop."""
        if running_loop() is None:
            self.wait_turn(self.lane_ends.get(lane, -1))

    def begin(self, lane: str, future: Any, begin: Callable[[], bool]) -> bool:
        """Begin a pool's future; one that was cancelled before it began when recorded blocks until it is cancelled."""
        if lane in self.cancelled and not self._is_open:
            thread = threading.current_thread()
            self.wait_until(lambda: future._state != PENDING or thread in self._shut)
            if thread in self._shut:
                cancel_rest(future)
        is_begun = begin()
        if self.census.is_any_waiting:
            self.move(nothing)  # another thread may wait for it to begin
        return is_begun

    def shut(self, threads: Iterable[threading.Thread]) -> None:
        """These threads of a pool take no more work: futures that they took too early are cancelled."""
        self.move(lambda: self._shut.update(threads))

    def _block(self, clock: int, others_s: float) -> None:
        stall_detector = StallDetector((self._head, self._arrived), self._look_ms)
        reaction: Reaction | None = None
        while True:
            if self._is_turn(clock):
                # Others may still be about to wait for this very result
                if self.working_threads <= 0:
                    return
                self._reacting.add(threading.get_ident())
                reaction = reaction or Reaction(others_s, is_quick=self.shows_reactions)
                if reaction.is_over(self.census.idle):
                    return
                self._pause(min(others_s, reaction.look_s))
                continue
            reaction = None
            self._reacting.discard(threading.get_ident())
            self._pause(LOOK_MS / 1000)
            is_busy, waiting = self.working_threads > 0, self.census.idle
            state, is_awaited = (self._head, self._arrived), self._is_awaited or self.is_turn_taken
            if stall_detector.is_over(state, is_busy=is_busy, is_awaited=is_awaited, waiting=waiting):
                self.skip_before(clock)

    def wait_until(self, is_free: Callable[[], bool], *, may_be_long: bool = False) -> bool:
        """Block the calling thread until `is_free`; False if nothing else moves any more, or ordering has ended.

        `may_be_long`: keep waiting for as long as any other thread is at work.
        """
        if (hub := running_hub()) is not None:
            return self.greenlets.wait_until(hub, is_free)
        self.census.join()
        with self._condition:
            if is_free():
                return True
            with self.census.waiting():
                return self._wait_until(is_free, may_be_long=may_be_long)

    def _wait_until(self, is_free: Callable[[], bool], *, may_be_long: bool) -> bool:
        stall_detector = StallDetector((self._head, self._moves, self._arrived), self._look_ms)
        self._condition.notify_all()  # one fewer thread is at work
        while not self._is_open:
            self._pause(LOOK_MS / 1000)
            if is_free():
                return True
            state, is_busy = (self._head, self._moves, self._arrived), self.working_threads > 0
            is_awaited = self._is_awaited or (may_be_long and is_busy)
            if stall_detector.is_over(state, is_busy=is_busy, is_awaited=is_awaited, waiting=self.census.idle):
                return False
        return False

    def move(self, step: Callable[[], None]) -> None:
        """Make a change that `wait_until` may be waiting for."""
        with self._condition:
            step()
            self._moves += 1
            self._condition.notify_all()

    @property
    def shows_reactions(self) -> bool:
        """See `Order`."""
        return self._shared is None and self.census.asleep == 0

    @property
    def is_thread_awaited(self) -> bool:
        """Whether other threads are at work, or have produced results that the loop has not received yet."""
        return self.working_threads > 1 or self._delivering > 0

    def deliver(self) -> None:
        """Count a thread's result as on its way to a loop; call `delivered` there."""
        with self._condition:
            self._delivering += 1
            self.census.told_at = time.monotonic()
        self.census.ended()

    def delivered(self) -> None:
        """The loop has received the result, or nothing waits for it any more."""
        with self._condition:
            self._delivering -= 1

    @property
    def working_threads(self) -> int:
        """The number of threads at work and not waiting here, including the calling one."""
        others = 0 if self._shared is None else self._shared.count_others_working()
        return self.census.working + others

    # ── event loops ─────────────────────────────────────────────────────────────────────────────────
    def add_listener(self, wake: Callable[[], None]) -> None:
        """Call `wake` (thread-safe) whenever something has gone out."""
        with self._condition:
            self._listeners.append(wake)

    def remove_listener(self, wake: Callable[[], None]) -> None:
        """Stop calling `wake`."""
        with self._condition:
            if wake in self._listeners:
                self._listeners.remove(wake)
