"""Callbacks that an event loop runs while a run is recorded, and that note when they run.

They are objects, not closures: the garbage collector walks a closure's cells one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from spanreplay.runtime.order.callback_proxies import CallbackProxy


class Timed(Protocol):
    """The part of a run that notes its timers."""

    is_ended: bool

    def end_timer(self, name: str, is_sleep: bool = False) -> None:
        """Note that something the agent waits for has happened."""


class NotedTimer(CallbackProxy):
    """A timer that notes when it fires."""

    __slots__ = ("_loop", "_name", "_run", "_when", "again", "fired", "is_cancelled")

    def __init__(self, run: Timed, name: str, loop: Any, when: float, callback: Any) -> None:
        super().__init__(callback)
        self._run, self._name, self._loop, self._when = run, name, loop, when
        self.again: Callable[..., Any] | None = None
        """Sets the timer once more, on a loop that counts whole milliseconds."""
        self.is_cancelled: Callable[[], bool] = bool
        """Whether the program has cancelled the timer, also after the loop's early call."""
        self.fired: Callable[[], None] | None = None
        """Called when it has fired and that is noted."""

    def __call__(self, *values: Any) -> None:
        if self.again is not None:
            if self.is_cancelled():
                return
            if self._loop.time() < self._when:  # anyio would set another timer
                self.again(*values)
                return
        self._run.end_timer(self._name)
        if self.fired is not None:
            self.fired()
        self._callback(*values)


class HandedOver(CallbackProxy):
    """A callback that another thread has handed over; notes when the loop runs it."""

    __slots__ = ("_name", "_run")

    def __init__(self, run: Timed, name: str, callback: Any) -> None:
        super().__init__(callback)
        self._run, self._name = run, name

    def __call__(self, *values: Any) -> None:
        if not self._run.is_ended:
            self._run.end_timer(self._name)
        self._callback(*values)
