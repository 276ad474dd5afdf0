"""Work that an event loop hands to a thread of its own pool, and waits for (trio's and anyio's `to_thread.run_sync`).

The thread is reused for many calls: the lane follows the call. The callback that it hands to the loop at its end is
named here, and gets its place in the order from `timers`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.caller import caller
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.lanes import (
    current_crossing,
    current_lane,
    enter_contexts,
    inside_thread,
    is_inside,
    label_of,
    peel,
)
from spanreplay.runtime.order import pool_workers
from spanreplay.runtime.order.counted import counted
from spanreplay.runtime.order.lane_end import LANE_END, HandedEnd
from spanreplay.runtime.order.loops import running_loop
from spanreplay.runtime.order.order import Order
from spanreplay.runtime.order.placing import placing
from spanreplay.runtime.run import Run
from spanreplay.seams.concurrency.carried import carried

WAIT_S: float = 60.0
"""How long, on the loop's clock, a replay waits for the cancellation of a call whose end was not recorded."""


class Work:
    """A call that a thread makes."""

    def __init__(self, run: Run, function: Any, args: tuple[Any, ...]) -> None:
        self.run = run
        self.is_placed = False
        """Whether the call has been assigned a thread."""
        work, contexts = peel(function, args)
        self._parent = current_lane(run.root_lane)
        self._lane = self._parent.child(label_of("x", work), current_crossing(run.root_lane))
        enter_contexts(contexts, self._lane)
        self._function = function
        by, is_background = caller.who_hands(sys._getframe(1)), caller.handed.is_background
        self._inside = inside_thread(self._parent, self._lane, by=by, is_background=is_background)
        self._carried = carried(self._lane)
        self._carried.ends_lane = False
        self._gate: Order | None = run.resolver.answers.gate if run.order.keeps_turns else None
        self._lock = make_lock()
        self._left = 2  # the thread, and the loop that is given the result
        self.end = HandedEnd(run, self._lane.path, self._leave, is_inside=is_inside(self._lane))
        self.has_started = False
        self._is_counted = False
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)

    @property
    def lane(self) -> str:
        """The path of its lane."""
        return self._lane.path

    def place(self) -> None:
        """In a replay, count the assigned thread as working now: the loop may check before the thread begins."""
        self.is_placed = True
        self._count()

    def drop(self) -> None:
        """Nobody waits for it any more: unless its thread has begun, it no longer counts as work."""
        with self._lock:
            is_over = self._is_counted and not self.has_started
            self._is_counted = self._is_counted and not is_over
        if is_over and self._gate is not None:
            self._gate.census.ended()

    def _count(self, *, has_started: bool = False) -> None:
        with self._lock:
            is_new = self._gate is not None and not self._is_counted
            self._is_counted = self._is_counted or is_new
            self.has_started = self.has_started or has_started
        if is_new and self._gate is not None:
            self._gate.census.started()

    def __call__(self, *args: Any) -> Any:
        self._count(has_started=True)
        counted.gate = self._gate
        try:
            with self._inside, self._carried:
                pool_workers.begin_borrowed(self.run, self._lane)
                return self._function(*args)
        finally:
            counted.gate = None
            if self._gate is not None:
                self._gate.deliver()
            setattr(threading.current_thread(), LANE_END, self.end)
            self._leave()

    def _leave(self) -> None:
        """Count down; the result is on its way until the loop has received it, or no longer waits for it."""
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last and self._gate is not None:
            self._gate.delivered()


caller.enters_thread(Work.__call__.__code__)


async def offload(
    run: Run, function: Any, args: tuple[Any, ...], start: Callable[[Any], Awaitable[Any]], *, can_abandon: bool
) -> Any:
    """Return `start(work)`, which has a thread call `work` instead of `function` and hands the result to the loop."""
    work = Work(run, function, args)
    gate = run.resolver.answers.gate if run.order.keeps_turns else None
    token = set_variable(placing, work)
    try:
        return await start(work)
    finally:
        reset_variable(placing, token)
        work.drop()
        is_known = gate is None or gate.timers is None or gate.is_open or work.end.name in gate.timers
        if can_abandon and work.has_started and not is_known and not work.end.is_inside:
            await _await_cancellation()


async def _await_cancellation() -> None:
    """Suspend: the end of this call was not recorded, because the task was cancelled before it."""
    loop = running_loop()
    future = loop.create_future()
    timer = loop.call_later(WAIT_S, lambda: future.done() or future.set_result(None))
    try:
        await future
    finally:
        timer.cancel()
