"""Virtual time for asyncio's own loops, with events placed between the same callbacks as when recorded.

Events that came while the loop was idle are released in the loop's own `select`, as in `virtual_time`. Events that came
while the program was still reacting to something are released between the same two callbacks again (see `steps`): the
ready queue asks for them before each callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import threading
from bisect import bisect_right
from collections import deque
from typing import Any

from spanreplay.replayer.schedule.pace import thread_of
from spanreplay.replayer.schedule.stall_detector import LOOK_MS, StallDetector
from spanreplay.replayer.schedule.virtual_time import POLLS_MAX, TURN_S, UNFIRED_MAX, Due, LoopClock
from spanreplay.runtime.calls.turns import complete
from spanreplay.runtime.lanes import current_lane
from spanreplay.runtime.order.counted import nothing
from spanreplay.runtime.order.loops import CLOCK, running_loop
from spanreplay.runtime.order.order import Order
from spanreplay.runtime.order.run_order import Deadline
from spanreplay.runtime.order.steps import Outer, StepQueue, Watched, watch
from spanreplay.runtime.order.wait_ends import SLEEP, unwatched
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import Run, active_run
from spanreplay.runtime.timer_names import label_of_callback

"""The callback of asyncio's `sleep`."""


class _Certain(asyncio.Future[None]):
    """The future of a task that kept running when recorded, even if something tried to cancel it before.

    Anyio leaves a task alone whose future is done, and tries again in the next loop iteration; `Task.cancel` takes
    effect.
    """

    def done(self) -> bool:
        """Always True, because anyio checks it; see `is_over`."""
        return True

    @property
    def is_over(self) -> bool:
        """Whether it has been set or cancelled."""
        return super().done()


class StepClock(LoopClock):
    """Takes over one event loop's clock, its idle moments and the gaps between its callbacks, while the loop runs."""

    def __init__(self, loop: Any, gate: Order, watched: Watched, run: Run) -> None:
        super().__init__(loop, gate)
        self._watched = watched
        self._run = run
        self._queue: StepQueue = watched.queue
        self._position = watched.queue.position_of(run)
        self._waiting: list[Due] = []
        self._handed: deque[Due] = deque()
        self._has_arrived = threading.Event()
        self._stall_detector: StallDetector | None = None
        self.is_attached = self.is_attached_as_running = False
        """Whether the loop runs, and whether being set as the running loop is the only sign of that."""
        self._thread = ""
        """The lane of the thread that runs the loop."""
        self._cancelling: dict[int, asyncio.Future[None]] = {}
        """Clock of each call that the program has to cancel again → the future that the call waits on."""
        self._last_noted = -1
        self._first = -1
        """The completion that callbacks are counted from since the loop was last idle; -1: none."""
        self._paused = -1
        """The completion that pauses are counted from, even while the loop is idle."""
        self._start = 0
        self._next = 0
        """The callbacks run before `_first`, and the index of the next completion among those after it."""

    def attach(self) -> None:
        """The loop begins to run."""
        self.is_attached = True
        self._thread = thread_of(current_lane(self._run.root_lane).path)
        self._loop.time = self._time
        self._loop._selector.select = self._select
        self._queue.director = self
        self._gate.add_listener(self._wake)
        self._gate.sent.enter(self)

    def release(self) -> None:
        """The loop has stopped: give it its own clock back."""
        self.is_attached = self.is_attached_as_running = False
        self._gate.sent.leave(self)
        self._gate.remove_listener(self._wake)
        self._queue.director = None
        if self._paused >= 0:
            self._end_pauses()
        self._loop.__dict__.pop("time", None)
        selector = getattr(self._loop, "_selector", None)
        if selector is not None:
            selector.__dict__.pop("select", None)

    def _wake(self) -> None:
        if running_loop() is not self._loop:
            self._has_arrived.set()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits there
                self._loop.call_soon_threadsafe(Outer(nothing))

    async def wait_turn(self, clock: int, seconds: float) -> None:
        """Suspend until the recorded duration has passed on the loop's clock and it is this completion's turn."""
        future = _Certain(loop=self._loop)
        heapq.heappush(self._waiting, Due(clock, self._time() + seconds, future=future))
        await future

    def make_wake(self, clock: int) -> asyncio.Future[None]:
        """Make a future that the program has to cancel; its waiter then continues between the same two callbacks again.

        A cancellation that arrives after this point is ignored, as it was when recorded.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        self._cancelling[clock] = future
        return future

    async def settle(self, clock: int) -> None:
        """Wait, in a cancelled task, until its call ends as recorded: its body may have continued."""
        await self.wait_turn(clock, 0.0)

    def hand_over(self, clock: int, callback: Any, args: list[Any], context: Any) -> asyncio.Handle:
        """Schedule a callback from another thread at its recorded place; thread-safe."""
        handle = asyncio.Handle(callback, args, self._loop, context)
        self._handed.append(Due(clock, 0.0, handle=handle))
        self._has_arrived.set()
        self._loop.call_soon_threadsafe(Outer(nothing))
        return handle

    def set_deadline(self, name: str, deadline: Deadline) -> Any:
        """Set a deadline, which has passed if it had when recorded, and else has not."""
        gate = self._gate
        if gate.timers is None or gate.is_open:
            return deadline.set()
        passed, now = gate.timers.get(name, -1), self._time()
        if passed >= 0:
            self.reach(deadline.moment)
            complete(gate, passed)
            return deadline.set_at(self._time())
        return deadline.set() if deadline.moment > now else deadline.set_at(now + TURN_S)

    def make_timer(
        self, name: str, when: float, callback: Any, args: list[Any], context: contextvars.Context | None
    ) -> asyncio.TimerHandle | None:
        """Make a timer that fires where it did when recorded; None if the recording has no timers."""
        if self._gate.timers is None or self._gate.is_live:
            return None
        handle = asyncio.TimerHandle(when, callback, args, self._loop, context)
        clock = self._gate.timers.get(name, -1)
        if clock >= 0:
            heapq.heappush(self._waiting, Due(clock, when, handle=handle))
        else:  # it never fired: something else came first
            self.keep_unfired(handle)
            if label_of_callback(callback) != SLEEP:  # a pause beside a call ends nothing
                heapq.heappush(self._limits, (when, when - self._time(), id(handle), handle))
        return handle

    # ── between two callbacks ───────────────────────────────────────────────────────────────────────────
    def note(self, clock: int) -> None:
        """Count callbacks from this completion, which has just gone out."""
        if clock <= self._last_noted:
            return
        self._last_noted = clock
        steps = self._gate.steps
        first, count = steps.following.get(clock, (clock if clock in steps.behind else -1, 0))
        counted_from = first if first >= 0 else clock
        if steps.pauses and counted_from != self._paused:
            self._end_pauses()
            self._paused = counted_from
        if first != self._first:
            self._first = first
            self._next = bisect_right(steps.behind[first], (clock, count)) if first >= 0 else 0
        self._start = self._position.steps - count

    def _end_pauses(self) -> None:
        """If fewer callbacks run than when recorded, pauses that are overdue no longer block anything."""
        steps = self._gate.steps
        late = [c for c, _ in steps.behind.get(self._paused, ()) if c in steps.pauses and not self._gate.is_over(c)]
        self._paused = -1
        if late:
            self._gate.complete(*late)

    def take_due(self) -> asyncio.Handle | None:
        """Return the handle that was recorded to run before the next callback, if it is due and has not run yet."""
        if self._first < 0 <= self._paused and self._queue.is_step(self._queue[0]):
            self._end_pauses()
        while self._first >= 0:
            behind = self._gate.steps.behind[self._first]
            if self._next >= len(behind) or self._gate.is_open:
                self._first = -1
                break
            clock, count = behind[self._next]
            if self._position.steps - self._start < count or not self._queue.is_step(self._queue[0]):
                break
            if clock in self._gate.steps.pauses and not self._gate.is_over(clock):
                with unwatched():
                    self._gate.wait_turn(clock)
                self._gate.complete(clock)
            if self._gate.is_over(clock):
                self._next += 1
                continue
            due = self._release_due(clock)
            if due is not None or not self._is_coming(clock):
                return due
        return None

    def _release_due(self, clock: int) -> asyncio.Handle | None:
        cancelled = self._cancelling.get(clock)
        if cancelled is not None and cancelled.done():
            del self._cancelling[clock]
            wakeup = self._take_wakeup(cancelled)
            if wakeup is not None:
                return wakeup
        head = self._find_head()
        if head is None or head.clock > clock or not self._gate.is_turn(head.clock):
            return None
        heapq.heappop(self._waiting)
        self._reach_head(head)
        if head.handle is None:
            head.fire()
            handle = self._take_wakeup(head.future)
        else:
            handle = self._run_handle(head.handle)
        self.note(head.clock)
        self._gate.complete(head.clock)
        return handle

    def _run_handle(self, handle: asyncio.Handle) -> asyncio.Handle | None:
        """Run a due handle, or return it to be run now."""
        return handle

    def _append_handle(self, handle: asyncio.Handle) -> None:
        """Schedule a handle that does not count as a callback."""
        handle._callback = Outer(handle._callback)  # type: ignore[attr-defined]  # typeshed leaves it out
        self._queue.append(handle)

    def _take_wakeup(self, future: asyncio.Future[None]) -> asyncio.Handle | None:
        """Remove the wakeup of a finished future from the queue and return it."""
        for handle in reversed(list(self._queue)):
            if handle._args and handle._args[0] is future:
                self._queue.remove(handle)
                return handle  # type: ignore[no-any-return]  # the queue holds nothing else
        return None

    def _is_coming(self, clock: int) -> bool:
        """Whether to look again for a completion that is due but missing: other threads may bring it."""
        if self._gate.is_over(clock):
            return True
        gate = self._gate
        if clock not in gate.handed_over and gate.working_threads <= 1 and not gate.comes_from_elsewhere(self._thread):
            self._stall_detector = None
            return False
        if self._stall_detector is None:
            self._stall_detector = StallDetector((clock, gate.head))
        with unwatched():
            self._has_arrived.wait(LOOK_MS / 1000)
        self._has_arrived.clear()
        if self._stall_detector.is_over((clock, gate.head), is_busy=gate.working_threads > 1, waiting=gate.census.idle):
            self._first, self._stall_detector = (
                -1,
                None,
            )  # the program no longer follows the recording
            return False
        return True

    # ── the loop's idle moments ─────────────────────────────────────────────────────────────────────
    def _select(self, timeout: float | None = None) -> Any:
        has_sent = self._gate.sent.take_sent()
        if self._gate.is_live:
            return self._select_live(timeout)
        self._queue.next_turn()
        if has_sent:
            return self._look(0)
        if timeout is not None and timeout <= 0 and self._queue.is_idle:
            timeout = self._find_timeout()
        if timeout is not None and timeout <= 0:
            self._idle_since = self._stuck_since = -1.0
            self._now_s += TURN_S
            return self._look(0)
        self._first = -1  # everything before this has been reacted to
        return self._select_idle(timeout)

    def _find_timeout(self) -> float | None:
        """Seconds until the loop's own next timer; None if there is none."""
        scheduled = self._loop._scheduled
        return max(0.0, float(scheduled[0].when()) - self._time()) if scheduled else None

    def _look(self, seconds: float) -> Any:
        events = self._real_select(seconds)
        self._watched.drain()
        self._queue.note_events(events)
        return events

    def _take_waiting(self) -> list[Due]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def _find_head(self) -> Due | None:
        while self._handed:
            heapq.heappush(self._waiting, self._handed.popleft())
        while self._waiting and self._waiting[0].is_over():
            self._gate.complete(heapq.heappop(self._waiting).clock)
        while self._unfired and self._unfired[0][2].cancelled():
            heapq.heappop(self._unfired)
        return self._waiting[0] if self._waiting else None

    def _let_go(self, head: Any) -> None:
        """Let the head continue, and completions of the same iteration of a loop whose callbacks aren't counted."""
        while True:
            heapq.heappop(self._waiting)
            if head.handle is not None:
                self._append_handle(head.handle)
            elif not head.is_over():
                head.fire()
            self.note(head.clock)
            self._gate.complete(head.clock)
            behind = self._find_head()
            if behind is None or behind.clock in self._gate.steps.following:
                return
            if not self._gate.is_joint(head.clock, behind.clock) or not self._gate.is_turn(behind.clock):
                return
            head = behind

    def _give_up(self, head: Due | None) -> float | None:
        """Give up: nothing has happened for too long, so the program no longer follows the recording."""
        self._idle_since = -1.0
        expected = min(self._cancelling, default=-1) if head is None else head.clock
        if expected >= 0 and not self._gate.is_turn(expected):
            self._gate.skip_before(expected)
        elif self._unfired:
            when, _, handle = heapq.heappop(self._unfired)
            self._count_poll(POLLS_MAX // UNFIRED_MAX)
            self._jump(when)
            self._loop._ready.append(handle)
        else:
            return self._wait_for_nothing()
        return None


def install(gate: Order, patches: Patches) -> None:
    """Take over every asyncio loop of the standard library that is run from now on.

    A loop that `nest_asyncio` has given its own way of running is detected when it sets the running loop.
    """
    import asyncio.base_events

    def find_clock(loop: Any) -> StepClock | None:
        run = active_run()
        watched = None if run is None or run.session is None else watch(loop)
        if run is None or watched is None:
            return None
        clock = loop.__dict__.get(CLOCK)
        if clock is None:
            clock = loop.__dict__[CLOCK] = StepClock(loop, gate, watched, run)
        return clock  # type: ignore[no-any-return]  # nothing else is ever stored there

    def run_forever(wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
        clock = find_clock(loop)
        if clock is None:
            return wrapped(*args, **kwargs)
        clock.attach()
        try:
            return wrapped(*args, **kwargs)
        finally:
            clock.release()

    def set_running_loop(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        left = running_loop()
        wrapped(*args, **kwargs)
        entered = running_loop()
        if entered is left:
            return
        clock = _clock_of(left)
        if clock is not None and clock.is_attached_as_running:
            clock.release()
        if isinstance(entered, asyncio.base_events.BaseEventLoop):
            clock = find_clock(entered)
            if clock is not None and not clock.is_attached:
                clock.attach()
                clock.is_attached_as_running = True

    patches.wrap(asyncio.base_events.BaseEventLoop, "run_forever", run_forever)
    patches.wrap(asyncio.events, "_set_running_loop", set_running_loop)


def _clock_of(loop: Any) -> StepClock | None:
    clock = getattr(loop, "__dict__", {}).get(CLOCK)
    return clock if isinstance(clock, StepClock) else None
