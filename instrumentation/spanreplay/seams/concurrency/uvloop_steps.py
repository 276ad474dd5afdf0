"""Seam: the order of events in uvloop's event loop.

Records nothing; notes when timers fire and when handed-over callbacks run, and counts the steps between completions
where callbacks are scheduled.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

from spanreplay.runtime import lanes
from spanreplay.runtime.caller.running import RUN
from spanreplay.runtime.order.callback_proxies import CallbackProxy
from spanreplay.runtime.order.steps import STATE, LoopPosition, Outer, Owner, Retry
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run
from spanreplay.seams.concurrency import asyncio_timers as timers


def install(module: Any, patches: Patches) -> None:
    """Patch `uvloop.Loop`."""
    patches.wrap(module.Loop, "call_at", timers.call_at)
    patches.wrap(module.Loop, "call_later", timers.call_later)
    patches.wrap(module.Loop, "call_soon", _call_soon)
    patches.wrap(module.Loop, "call_soon_threadsafe", timers.call_soon_threadsafe)


def _call_soon(wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
    """Have a step counted; in a run, from the first callback on that the loop is given."""
    counter: _Counter | None = loop.__dict__.get(STATE)
    if counter is None:
        if active_run() is None:
            return wrapped(*args, **kwargs)
        counter = loop.__dict__[STATE] = _Counter(wrapped)
    if not args or type(args[0]) is Retry:
        return wrapped(*args, **kwargs)
    callback, *rest = args
    step = _Step(counter, callback)
    handle = step.handle = wrapped(step, *rest, **kwargs)
    counter.waiting.add(step)
    return handle


class _Step(CallbackProxy):
    """One callback that a loop was given."""

    __slots__ = ("_counter", "handle")

    def __init__(self, counter: _Counter, callback: Callable[..., Any]) -> None:
        super().__init__(callback)
        self._counter = counter
        self.handle: Any = None

    def __call__(self, *args: Any) -> None:
        counter = self._counter
        counter.waiting.discard(self)
        self.handle = None  # which holds this step, and what the program gave with it
        counter.taken += 1
        if counter.positions and not isinstance(self._callback, Outer):
            position = counter.positions.get(RUN.get())
            if position is not None and lanes.is_of_agent(contextvars.copy_context()):
                position.steps += 1
        try:
            self._callback(*args)
        finally:
            if counter.positions and not counter.is_busy():
                counter.rest()


class _Counter:
    """Stands for `steps.Watched` and its queue if the loop's own queue can't be seen; used by the loop's thread."""

    def __init__(self, call_soon: Callable[..., Any]) -> None:
        self.queue = self
        self.taken = 0
        self.positions: dict[Any, LoopPosition] = {}
        self.waiting: set[_Step] = set()
        self._call_soon = call_soon
        self._turn = 0
        self._is_marked = False

    @property
    def turn(self) -> int:
        """A number for the loop's iteration; the loop itself reports the next one."""
        if not self._is_marked:
            self._is_marked = True
            self._call_soon(self._next_turn)
        return self._turn

    def _next_turn(self) -> None:
        self._turn += 1
        self._is_marked = False

    def is_busy(self) -> bool:
        """Whether the loop has something to run; cancelled callbacks don't count."""
        return any(not step.handle.cancelled() for step in self.waiting)

    def rest(self) -> None:
        """Note that the loop is idle."""
        self.waiting.clear()
        for position in self.positions.values():
            position.first = position.first_of_turn = -1

    def position_of(self, run: Owner) -> LoopPosition:
        """The position of a run."""
        return self.positions.setdefault(run if run.is_entered else None, LoopPosition())

    def take_select(self) -> None:
        """No-op: there is none to take over."""

    def leave(self, run: Owner) -> None:
        """Stop counting for a run."""
        self.positions.pop(run if run.is_entered else None, None)
