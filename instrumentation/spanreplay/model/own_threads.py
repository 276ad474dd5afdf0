"""Threads and locks that spanreplay has for itself: threads that are no lanes, locks that are free in a forked process.

An agent may fork while another of its threads makes a call. In the new process that thread is not there: a lock of ours
that it held would never be given back, and the first call there would wait for ever.
"""

from __future__ import annotations

import _thread  # whose locks nobody patches
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakSet


class _Starting(threading.local):
    is_unnumbered = False


STARTING: Final = _Starting()
"""Whether the calling thread starts threads that take no lane number."""
_LOOK_S: Final = 0.001
_locks: Final[WeakSet[Any]] = WeakSet()


@contextmanager
def unnumbered_threads() -> Iterator[None]:
    """A block whose new threads work for many: they are no lanes."""
    before, STARTING.is_unnumbered = STARTING.is_unnumbered, True
    try:
        yield
    finally:
        STARTING.is_unnumbered = before


def make_lock() -> Any:
    """A `threading.RLock`: finalizers and signal handlers may take it again in the thread that has it."""
    lock = _thread.RLock()
    _locks.add(lock)
    return lock


def wait_until(is_so: Callable[[], bool], limit_s: float) -> bool:
    """Wait until something that another thread does is so, about `limit_s` seconds at most; whether it is."""
    pause = _thread.allocate_lock()
    pause.acquire()
    for _ in range(round(limit_s / _LOOK_S)):
        if is_so():
            return True
        pause.acquire(timeout=_LOOK_S)
    return is_so()


def _forked() -> None:
    for lock in list(_locks):
        if not lock._is_owned():
            lock._at_fork_reinit()


os.register_at_fork(after_in_child=_forked)
