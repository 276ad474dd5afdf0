"""Work that an event loop hands to a thread of its own pool, and waits for (trio's and anyio's `to_thread.run_sync`).

The thread is one of many that are used again: the lane follows the call. What it hands to the loop at its end is named
here, and gets its place in the order from `timers`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from spanreplay.lane_end import LANE_END, HandedEnd
from spanreplay.lanes import _enter, _inside_thread, _peel, current_crossing, current_lane, label_of
from spanreplay.local import origin
from spanreplay.loops import running_loop
from spanreplay.replay.crew import counted
from spanreplay.replay.order import OrderGate
from spanreplay.run import Run, carried

WAIT_S: float = 60.0
"""How long, on the loop's clock, a replay waits for the cancellation of a call whose end nobody saw."""


class Work:
    """One call that a thread makes."""

    def __init__(self, run: Run, function: Any, args: tuple[Any, ...]) -> None:
        work, contexts = _peel(function, args)
        self._parent = current_lane(run.root_lane)
        self._lane = self._parent.child(label_of("x", work), current_crossing(run.root_lane))
        _enter(contexts, self._lane)
        self._function = function
        self._by_agent = origin.is_handed_by_agent(sys._getframe(1))
        self._carried = carried(self._lane)
        self._carried.ends_lane = False
        self._gate: OrderGate | None = None if run.session is None else run.session.gate
        self._lock = threading.RLock()
        self._left = 2  # the thread, and the loop that is given the result
        self.end = HandedEnd(run, self._lane.path, self._leave, is_inside=self._lane.owner is not None)
        self.has_started = False
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)

    def __call__(self, *args: Any) -> Any:
        self.has_started = True
        if self._gate is not None:
            self._gate.crew.started()
            counted.is_here = True
        try:
            with _inside_thread(self._parent, self._lane, by_agent=self._by_agent), self._carried:
                return self._function(*args)
        finally:
            counted.is_here = False
            if self._gate is not None:
                self._gate.deliver()
            setattr(threading.current_thread(), LANE_END, self.end)
            self._leave()

    def _leave(self) -> None:
        """The thread's result is on its way until the loop has it, or does not wait for it any more."""
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last and self._gate is not None:
            self._gate.delivered()


origin.enters_thread(Work.__call__.__code__)


async def offload(
    run: Run, function: Any, args: tuple[Any, ...], start: Callable[[Any], Awaitable[Any]], *, can_abandon: bool
) -> Any:
    """What `start(work)` gives, which has a thread call `work` instead of `function` and hands the loop the result."""
    work = Work(run, function, args)
    gate = None if run.session is None else run.session.gate
    try:
        return await start(work)
    finally:
        is_known = gate is None or gate.timers is None or gate.is_open or work.end.name in gate.timers
        if can_abandon and work.has_started and not is_known and not work.end.is_inside:
            await _await_cancellation()


async def _await_cancellation() -> None:
    """Suspend: nobody saw the end of this call, because the task was cancelled before."""
    loop = running_loop()
    future = loop.create_future()
    timer = loop.call_later(WAIT_S, lambda: future.done() or future.set_result(None))
    try:
        await future
    finally:
        timer.cancel()
