"""Threads and locks that spanreplay has for itself: threads that are no lanes, locks that are free in a forked process.

An agent may fork while another of its threads makes a call. In the new process that thread is not there: a lock of ours
that it held would never be given back, and the first call there would wait for ever. So would an import: a module that
a call of ours was importing has a lock too, and a fork waits until that import has ended.
"""

from __future__ import annotations

import _thread  # whose locks nobody patches
import encodings
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final
from weakref import WeakSet

from spanreplay.model.guard import logger
from spanreplay.model.here import PACKAGE


class _Starting(threading.local):
    is_unnumbered = False


STARTING: Final = _Starting()
"""Whether the calling thread starts threads that take no lane number."""
FORK_S_MAX: Final = 1.0
"""Seconds that a fork waits for imports of ours in other threads."""
_LOOK_S: Final = 0.001
_IMPORTS: Final = ("<frozen importlib", encodings.search_function.__code__.co_filename)
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


def _imports_for_us(frame: FrameType | None) -> bool:
    """Whether a thread that is here imports a module, or looks a codec up, because a function of ours does."""
    inner = None
    while frame is not None:
        if inner is not None and inner.startswith(_IMPORTS) and frame.f_code.co_filename.startswith(PACKAGE):
            return True
        inner, frame = frame.f_code.co_filename, frame.f_back
    return False


def _is_importing() -> bool:
    if not getattr(sys.modules.get("_frozen_importlib"), "_module_locks", True):
        return False
    here = _thread.get_ident()
    return any(_imports_for_us(frame) for ident, frame in sys._current_frames().items() if ident != here)


def _before_fork() -> None:
    if _is_importing() and not wait_until(lambda: not _is_importing(), FORK_S_MAX):
        logger.warning("a process was forked while another thread imports a module for spanreplay: it may hang")


def _forked() -> None:
    for lock in list(_locks):
        if not lock._is_owned():
            lock._at_fork_reinit()


os.register_at_fork(before=_before_fork, after_in_child=_forked)
