"""CPU time that the recorder takes in this process: on the program's threads and on its own.

Measured with the thread's own clock around the outermost part: describing, redacting and writing calls and spans, the
start and the end of units. Unmeasured work (checking a lock, passing through a wrapper) makes the figure too low.
Without a limit nothing is measured and no clock is read.

Sampling the code of each thread from another thread was tried and is wrong: the sampler runs when a thread releases the
GIL to write, so that writing seems to take most of the time.
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
"""Prefix of our threads' names."""


class _Here(threading.local):
    is_inside = False


class Meter:
    """CPU time of measured parts that the program's threads ran since the last reading. Thread-safe."""

    def __init__(self) -> None:
        self.is_on = False
        self._here = _Here()
        self._spent_ns: list[int] = []

    def enter(self) -> int:
        """Start a measured part; return the thread's clock, or -1 inside another part."""
        if self._here.is_inside:
            return -1
        self._here.is_inside = True
        return thread_time_ns()

    def leave(self, begun_ns: int) -> None:
        """End the part that began at `begun_ns`."""
        if begun_ns >= 0:
            self._here.is_inside = False
            self._spent_ns.append(thread_time_ns() - begun_ns)  # append is atomic between threads

    def take(self) -> int:
        """Nanoseconds since the last reading."""
        spent, self._spent_ns = self._spent_ns, []
        return sum(spent)


METER: Final = Meter()


def measured(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a part of the recorder: its CPU time is measured if there is a limit."""

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
    """CPU time of our own threads, if the system reports it (Linux)."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def take(self) -> int:
        """Nanoseconds since the last reading."""
        known, self._known = self._known, {}
        for thread in list(threading._active.values()):  # type: ignore[attr-defined]  # without its lock
            if thread.name.startswith(_OWN) and thread.native_id is not None:
                used = _read_used_ns(thread.native_id)
                if used >= 0:
                    self._known[thread.native_id] = used
        return sum(max(0, used - known.get(native, 0)) for native, used in self._known.items())


def _read_used_ns(native: int) -> int:
    """CPU time of a thread of this process; -1 if the thread is gone or the system does not report it."""
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
