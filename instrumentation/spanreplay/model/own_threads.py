"""spanreplay's own threads and locks: threads that are not lanes, locks that are free after a fork.

An agent may fork while another of its threads makes a call. The child process does not have that thread: a lock of
ours that it held would never be released, and the first call in the child would hang. The same holds for a module that
a call of ours was importing, because imports have locks too; so a fork waits until that import has ended.
"""

from __future__ import annotations

import _thread  # nobody patches its locks
import encodings
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from spanreplay.model.guard import logger
from spanreplay.model.here import PACKAGE

P = ParamSpec("P")
T = TypeVar("T")


class _Starting(threading.local):
    is_unnumbered = False


STARTING: Final = _Starting()
"""Whether the calling thread starts threads that take no lane number."""
FORK_S_MAX: Final = 1.0
"""Longest time, in seconds, that a fork waits for imports of ours in other threads."""
TURN_S_MAX: Final = 5.0
_LOOK_S: Final = 0.001
_IMPORTS: Final = ("<frozen importlib", encodings.search_function.__code__.co_filename)
_locks: Final[WeakSet[Any]] = WeakSet()


@contextmanager
def unnumbered_threads() -> Iterator[None]:
    """A block whose new threads are not lanes, because they work for several."""
    before, STARTING.is_unnumbered = STARTING.is_unnumbered, True
    try:
        yield
    finally:
        STARTING.is_unnumbered = before


def make_lock() -> Any:
    """Make a `threading.RLock`: finalizers and signal handlers may acquire it again in the thread that holds it."""
    lock = _thread.RLock()
    _locks.add(lock)
    return lock


def one_at_a_time(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator: one thread at a time runs the function; others wait for it, at most `TURN_S_MAX` seconds."""
    lock = make_lock()

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        is_turn = lock.acquire(timeout=TURN_S_MAX)
        try:
            return function(*args, **kwargs)
        finally:
            if is_turn:
                lock.release()

    return run


def wait_until(is_so: Callable[[], bool], limit_s: float) -> bool:
    """Wait for a condition that another thread brings about, at most about `limit_s` seconds; whether it holds."""
    pause = _thread.allocate_lock()
    pause.acquire()
    for _ in range(round(limit_s / _LOOK_S)):
        if is_so():
            return True
        pause.acquire(timeout=_LOOK_S)
    return is_so()


def _imports_for_us(frame: FrameType | None) -> bool:
    """Whether a thread at this frame is importing a module, or looking up a codec, for a function of ours."""
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


def living(container: WeakSet[T] | WeakKeyDictionary[T, Any]) -> list[T]:
    """Return the members of a weak set, or the keys of a weak dictionary, as they are now.

    Iterating over the container itself raises RuntimeError if another thread adds one meanwhile.
    """
    references: Any = container.data  # type: ignore[union-attr]  # typeshed leaves it out
    return [found for each in list(references) if (found := each()) is not None]


def _before_fork() -> None:
    if _is_importing() and not wait_until(lambda: not _is_importing(), FORK_S_MAX):
        logger.warning("a process was forked while another thread imports a module for spanreplay: it may hang")


def _forked() -> None:
    for lock in list(_locks):
        if not lock._is_owned():
            lock._at_fork_reinit()


os.register_at_fork(before=_before_fork, after_in_child=_forked)
