"""Virtual time for asyncio: a replay never waits for a clock.

An event loop that has nothing to do would sleep until its next timer. In a replay it jumps there. A served call
completes when the loop's clock has moved on by the recorded duration and it is its turn in the recorded order (see
`order`), so timeouts, back-offs and races between timers and calls come out as recorded, at once.

Everything happens in the loop's own `select`: asyncio calls it with a positive timeout, or with None, exactly when
nothing is ready to run.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Any, Final

from spanreplay._patch import Patches
from spanreplay.replay.order import STALL_BUSY_MS, STALL_MS, OrderGate
from spanreplay.run import active_run

TURN_S: Final = 0.00001
"""How far the clock moves in a turn of the loop that had something to do: the processor's own time would let timers
overtake calls, and none at all would let a program that polls the clock run for ever."""
_POLL_S: Final = 0.005
"""How long to look for real input and output while other threads work."""


STARTED_MAX: Final = 10_000
"""Streams whose start on the loop's clock is remembered."""


class _Waiter:
    __slots__ = ("clock", "due", "future")

    def __init__(self, clock: int, due: float, future: asyncio.Future[None]) -> None:
        self.clock = clock
        self.due = due
        self.future = future

    def __lt__(self, other: _Waiter) -> bool:
        return (self.clock, self.due) < (other.clock, other.due)


class LoopClock:
    """Takes over one event loop's clock and its idle moments."""

    def __init__(self, loop: Any, gate: OrderGate) -> None:
        self._loop = loop
        self._gate = gate
        self._now_s = float(loop.time())
        self._waiters: list[_Waiter] = []
        self._real_time = loop.time
        self._real_select = loop._selector.select
        self._idle_since = -1.0
        self._started: dict[int, float] = {}
        loop.time = self._time
        loop._selector.select = self._select
        gate.add_listener(self._wake)

    def release(self) -> None:
        """Give the loop its own clock back."""
        self._gate.remove_listener(self._wake)
        self._loop.__dict__.pop("time", None)
        selector = getattr(self._loop, "_selector", None)
        if selector is not None:
            selector.__dict__.pop("select", None)

    def _time(self) -> float:
        return self._now_s

    def _wake(self) -> None:
        try:
            running = asyncio._get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            try:
                self._loop.call_soon_threadsafe(_nothing)
            except RuntimeError:  # the loop is closed: nobody waits there
                return

    def since(self, crossing: Any) -> float:
        """Seconds on the loop's clock since a call was first seen here."""
        now = self._time()
        started = self._started.setdefault(crossing.seq, now)
        if len(self._started) > STARTED_MAX:
            self._started.pop(next(iter(self._started)))
        return now - started

    async def wait_turn(self, clock: int, seconds: float) -> None:
        """Suspend until the recorded duration has passed on the loop's clock and it is this completion's turn."""
        future: asyncio.Future[None] = self._loop.create_future()
        heapq.heappush(self._waiters, _Waiter(clock, self._time() + seconds, future))
        await future

    # ── the loop's idle moments ─────────────────────────────────────────────────────────────────────
    def _select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout <= 0:
            self._idle_since = -1.0
            self._now_s += TURN_S
            return self._real_select(timeout)
        events = self._real_select(0)
        if events:
            self._idle_since = -1.0
            return events
        while self._waiters and self._waiters[0].future.done():
            heapq.heappop(self._waiters)
        timer = None if timeout is None else self._time() + timeout
        head = self._waiters[0] if self._waiters else None
        if head is not None and self._gate.is_turn(head.clock):
            if timer is None or head.due <= timer:
                self._jump(head.due)
                self._release(head)
            else:
                self._jump(timer)
            return []
        return self._idle(head, timer)

    def _release(self, head: _Waiter) -> None:
        """Let the head go on, and with it what completed in the same turn of the loop."""
        heapq.heappop(self._waiters)
        head.future.set_result(None)
        while self._waiters and self._gate.is_joint(head.clock, self._waiters[0].clock):
            waiter = heapq.heappop(self._waiters)
            if not waiter.future.done():
                waiter.future.set_result(None)

    def _idle(self, head: _Waiter | None, timer: float | None) -> Any:
        # Nothing here can go on by itself: let other threads and real sockets move first
        others = self._gate.working_threads > 1 or len(self._loop._selector.get_map()) > 1
        now = float(self._real_time())
        if self._idle_since < 0:
            self._idle_since = now
        waited_ms = (now - self._idle_since) * 1000
        if timer is not None and not others and (head is None or timer < head.due):
            self._jump(timer)
            self._idle_since = -1.0
            return []
        if others and waited_ms < STALL_BUSY_MS and (timer is None or waited_ms < STALL_MS or head is not None):
            return self._poll(_POLL_S)
        if timer is not None and (head is None or timer < head.due or waited_ms < STALL_MS):
            self._jump(timer)
            self._idle_since = -1.0
            return []
        if head is None:
            return self._poll(_POLL_S * 10)
        if waited_ms < STALL_MS:
            return self._poll(_POLL_S)
        self._gate.skip_before(head.clock)
        self._idle_since = -1.0
        return []

    def _poll(self, seconds: float) -> Any:
        """Let real time pass for a moment: something outside may need it."""
        self._now_s += seconds
        return self._real_select(seconds)

    def _jump(self, moment: float) -> None:
        self._now_s = max(self._now_s, moment)
        self._idle_since = -1.0


def _nothing() -> None:
    return None


def install(gate: OrderGate, patches: Patches) -> None:
    """Take over every asyncio loop of the standard library that is run from now on."""
    import asyncio.base_events

    def run_forever(wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
        run = active_run()
        if run is None or run.session is None or not hasattr(loop, "_selector"):
            return wrapped(*args, **kwargs)
        clock = LoopClock(loop, gate)
        loop.__dict__["_spanreplay_clock"] = clock
        try:
            return wrapped(*args, **kwargs)
        finally:
            loop.__dict__.pop("_spanreplay_clock", None)
            clock.release()

    patches.wrap(asyncio.base_events.BaseEventLoop, "run_forever", run_forever)


def clock_of_running_loop() -> LoopClock | None:
    """The clock of the loop that runs in this thread, if it was taken over."""
    loop = asyncio._get_running_loop()
    clock: LoopClock | None = getattr(loop, "__dict__", {}).get("_spanreplay_clock")
    return clock
