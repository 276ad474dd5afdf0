"""What an event loop calls while a run is recorded, and what is noted of it there.

Objects rather than functions with their cells, which the garbage collector walks one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Timed(Protocol):
    """A run, as far as its timers are concerned."""

    is_ended: bool

    def end_timer(self, name: str, is_sleep: bool = False) -> None:
        """Something that the agent waits for has happened."""


class NotedTimer:
    """A timer that notes when it fires."""

    __slots__ = ("_callback", "_loop", "_name", "_run", "_when", "again")

    def __init__(self, run: Timed, name: str, loop: Any, when: float, callback: Any) -> None:
        self._run, self._name, self._loop, self._when, self._callback = run, name, loop, when, callback
        self.again: Callable[..., Any] | None = None
        """Of a loop that counts whole milliseconds: sets the timer once more."""

    def __call__(self, *values: Any) -> None:
        if self.again is not None and self._loop.time() < self._when:  # anyio would set another timer
            self.again(*values)
            return
        self._run.end_timer(self._name)
        self._callback(*values)


class HandedOver:
    """What another thread has handed over; notes when the loop comes to it."""

    __slots__ = ("_callback", "_name", "_run")

    def __init__(self, run: Timed, name: str, callback: Any) -> None:
        self._run, self._name, self._callback = run, name, callback

    def __call__(self, *values: Any) -> None:
        if not self._run.is_ended:
            self._run.end_timer(self._name)
        self._callback(*values)
