"""Work that an event loop hands to a thread of its own pool, and waits for (trio's and anyio's `to_thread.run_sync`).

The thread is one of many that are used again: the lane follows the call. On trio the end of the call takes a value of
the run's clock in the thread of the loop, right before whoever waits for it goes on; in a replay the loop is handed the
result then (`starting`). On asyncio the thread hands the result to the loop, which `timers` gives its place in the
order; it is named here.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final

from spanreplay.lane_end import LANE_END, HandedEnd
from spanreplay.lanes import _enter, _inside_thread, _peel, current_crossing, current_lane, label_of
from spanreplay.local import origin
from spanreplay.loops import clock_of_running_loop, running_loop
from spanreplay.replay.cancel import is_cancellation
from spanreplay.replay.crew import counted
from spanreplay.replay.order import OrderGate
from spanreplay.replay.turns import complete
from spanreplay.run import Run, carried
from spanreplay.timers import guarded_name

WAIT_S: float = 60.0
"""How long, on the loop's clock, a replay waits for the cancellation of a call whose end nobody saw."""


class Work:
    """One call that a thread makes."""

    def __init__(self, run: Run, function: Any, args: tuple[Any, ...], *, is_handed: bool = False) -> None:
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
        self._left = 2  # the thread, and the task that waits for it or the loop that is given the result
        self._is_handed = is_handed
        self.end = HandedEnd(run, self._lane.path, self._leave, is_inside=self._lane.owner is not None)
        self.has_started = False
        self.clock = -1
        """In a replay, when its end was seen on trio."""
        self.is_given = False
        """Whether the loop has the result, and gives it to whoever waits for it in its turn."""
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
            if self._is_handed:
                setattr(threading.current_thread(), LANE_END, self.end)
            self._leave()

    def left_by_task(self) -> None:
        """Whoever waited for the call goes on."""
        if self.has_started and not self.is_given:
            self._leave()

    def give(self) -> None:
        """The loop has the result."""
        self.is_given = True
        self._leave()

    def _leave(self) -> None:
        """The thread's result is on its way until the loop has it, or does not wait for it any more."""
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last and self._gate is not None:
            self._gate.delivered()


origin.enters_thread(Work.__call__.__code__)
starting: Final[ContextVar[Work | None]] = ContextVar("starting", default=None)
"""The call that a task of trio is about to have a thread make."""


async def offload_handed(
    run: Run, function: Any, args: tuple[Any, ...], start: Callable[[Any], Awaitable[Any]], *, can_abandon: bool
) -> Any:
    """What `start(work)` gives, which has a thread call `work` instead of `function` and hand its result to asyncio."""
    work = Work(run, function, args, is_handed=True)
    gate = None if run.session is None else run.session.gate
    try:
        return await start(work)
    finally:
        is_known = gate is None or gate.timers is None or gate.is_open or work.end.name in gate.timers
        if can_abandon and work.has_started and not is_known and not work.end.is_inside:
            await _await_cancellation()


async def offload(
    run: Run,
    function: Any,
    args: tuple[Any, ...],
    start: Callable[[Any], Awaitable[Any]],
    shield: Callable[[], AbstractContextManager[Any]],
    *,
    can_abandon: bool,
) -> Any:
    """What `start(work)` gives, which has a thread call `work` instead of `function`.

    `shield` keeps cancellation out of a block; a call that can be abandoned is left to itself when it is cancelled.
    """
    name = guarded_name(run, function)
    work = Work(run, function, args)
    if name and run.session is not None:
        work.clock = (run.session.gate.timers or {}).get(name, -1)
    is_seen, token = True, starting.set(work)
    try:
        return await start(work)
    except BaseException as exc:
        is_seen = work.has_started and not (can_abandon and is_cancellation(exc))
        raise
    finally:
        starting.reset(token)
        work.left_by_task()
        if name and is_seen and run.session is None:
            run.end_timer(name)
        elif name and is_seen and run.session is not None and not work.is_given:
            await _await_end(run.session.gate, name, shield, can_abandon=can_abandon)


async def _await_end(
    gate: OrderGate, name: str, shield: Callable[[], AbstractContextManager[Any]], *, can_abandon: bool
) -> None:
    """Suspend until it is the turn of a call's end to be seen, as it was recorded."""
    loop_clock = clock_of_running_loop()
    if gate.timers is None or gate.is_live or loop_clock is None:
        return
    clock = gate.timers.get(name, -1)
    if clock >= 0:
        try:
            with shield():
                await loop_clock.wait_turn(clock, 0)
        finally:
            complete(gate, clock)
    elif can_abandon:  # it was cancelled before its end
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
