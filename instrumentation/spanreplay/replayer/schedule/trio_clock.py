"""Virtual time for trio, with events placed between the same steps as when recorded (see `step_clock`)."""

from __future__ import annotations

import asyncio
import heapq
from typing import Any

from spanreplay.replayer.schedule.step_clock import StepClock
from spanreplay.replayer.schedule.virtual_time import Due
from spanreplay.runtime.calls.turns import complete
from spanreplay.runtime.order.loops import CLOCK
from spanreplay.runtime.order.order import Order
from spanreplay.runtime.order.trio_loop import POLLED, Future, TrioLoop
from spanreplay.runtime.order.trio_steps import TrioQueue
from spanreplay.runtime.run import Run


class TrioTime(StepClock):
    """Takes over the clock of one `trio.run`, its idle moments and the gaps between its steps."""

    _queue: TrioQueue

    def __init__(self, loop: TrioLoop, gate: Order, run: Run) -> None:
        super().__init__(loop, gate, loop._spanreplay_steps, run)

    def attach(self) -> None:
        """Trio is about to run."""
        vars(self._loop)[CLOCK] = self
        super().attach()
        self._loop.take_queue()
        self._loop.release = self.release

    def make_deadline(self, name: str, deadline: float, fire: Any, scope: Any) -> bool:
        """Have a scope's deadline pass when it did; False if the recording says nothing about deadlines."""
        polled = name + POLLED
        shown = polled if polled in (self._gate.timers or ()) else name
        handle = self.make_timer(shown, deadline, fire, [self._loop, scope, deadline], None)
        if handle is not None:
            self._loop.deadlines.handles[scope] = handle
        return handle is not None

    def poll(self, scope: Any) -> None:
        """The program asks whether a scope is cancelled: its deadline passes now if it did at this question."""
        gate, deadlines = self._gate, self._loop.deadlines
        clock = (gate.timers or {}).get(deadlines.names.get(scope, "") + POLLED, -1)
        if clock >= 0 and gate.is_turn(clock) and not self._run.is_ended:
            handle = deadlines.handles[scope]
            handle._run()
            handle.cancel()
            complete(gate, clock)

    async def wait_turn(self, clock: int, seconds: float) -> None:
        """As on asyncio; an earlier cancellation doesn't interrupt a call that was recorded as completed."""
        future: Future = self._loop.create_future()
        future.is_shielded = True
        heapq.heappush(self._waiting, Due(clock, self._time() + seconds, future=future))
        await future

    def _run_handle(self, handle: asyncio.Handle) -> asyncio.Handle | None:
        self._loop.call(handle)  # a task that it wakes runs after those already awake
        return None

    def _append_handle(self, handle: asyncio.Handle) -> None:
        self._loop.call(handle)

    def _take_wakeup(self, future: Any) -> Any:
        """Remove the task that waits for a finished future from the queue and return it."""
        if future.task is None or future.task not in self._queue:
            return None
        self._queue.remove(future.task)
        return future.task

    def _select(self, timeout: float | None = None) -> Any:
        is_between_steps = timeout is not None and timeout <= 0 and self._queue.left > 0
        return [] if is_between_steps and not self._gate.is_live else super()._select(timeout)
