"""How much processor time the recorder takes in this process: where the program waits for it, and in its own threads.

Measured with the thread's own clock, from the outermost part in: describing, redacting and writing calls and spans, the
begin and the end of units. What is not measured (a look at a lock, the pass through a wrapper) makes the figure lower
than the truth. Nothing is measured, and no clock is asked, where there is no limit.

A look from outside, at which code each thread runs, was tried and is wrong: where a thread gives the interpreter up to
write is where others come to look, so that writing seems to take most of the time.
"""

from __future__ import annotations

import os
import posix
import threading
from collections.abc import Callable
from functools import wraps
from time import thread_time_ns
from typing import Final, ParamSpec, TypeVar

__all__ = ["METER", "OwnThreads", "measured"]

P = ParamSpec("P")
R = TypeVar("R")
_OWN: Final = "spanreplay-"
"""How the names of our threads begin."""


class _Here(threading.local):
    is_inside = False


class Meter:
    """The processor time of parts that threads of the program have run since it was last asked. Thread-safe."""

    def __init__(self) -> None:
        self.is_on = False
        self._here = _Here()
        self._spent_ns: list[int] = []

    def enter(self) -> int:
        """A part begins, where it is measured: the thread's clock; -1 inside of another one."""
        if self._here.is_inside:
            return -1
        self._here.is_inside = True
        return thread_time_ns()

    def leave(self, begun_ns: int) -> None:
        """The part that began then is over."""
        if begun_ns >= 0:
            self._here.is_inside = False
            self._spent_ns.append(thread_time_ns() - begun_ns)  # one operation, which threads cannot break up

    def take(self) -> int:
        """Nanoseconds since this was last asked."""
        spent, self._spent_ns = self._spent_ns, []
        return sum(spent)


METER: Final = Meter()


def measured(function: Callable[P, R]) -> Callable[P, R]:
    """A part of the recorder, whose processor time is measured where there is a limit."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not METER.is_on:
            return function(*args, **kwargs)
        begun = METER.enter()
        try:
            return function(*args, **kwargs)
        finally:
            METER.leave(begun)

    return run


class OwnThreads:
    """The processor time of our threads, where the system tells it (Linux)."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def take(self) -> int:
        """Nanoseconds since this was last asked."""
        known, self._known = self._known, {}
        for thread in list(threading._active.values()):  # type: ignore[attr-defined]  # without its lock
            if thread.name.startswith(_OWN) and thread.native_id is not None:
                used = _read_used_ns(thread.native_id)
                if used >= 0:
                    self._known[thread.native_id] = used
        return sum(max(0, used - known.get(native, 0)) for native, used in self._known.items())


def _read_used_ns(native: int) -> int:
    """The processor time of a thread of this process; -1 if it is gone, or nobody tells it."""
    try:
        descriptor = posix.open(f"/proc/self/task/{native}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        return int(posix.read(descriptor, 64).split()[0])
    except (OSError, ValueError, IndexError):
        return -1
    finally:
        posix.close(descriptor)
