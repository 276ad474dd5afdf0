"""Gives each call that an event loop hands to a thread (anyio, trio) the thread that it had when recorded.

Both libraries keep idle threads, take the latest one for a call, start a new one if none is idle, and drop threads that
were idle for ten seconds. A replay depends on no clock and no race: a call gets the thread that it had, after that
thread's current work, or a new one.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.own_threads import unnumbered_threads
from spanreplay.replayer.schedule.pool_workers import recorded_workers
from spanreplay.replayer.schedule.worker_watch import WatchedCall, watch_call
from spanreplay.runtime.order.order import Order
from spanreplay.runtime.order.placing import Offloaded, placing

if TYPE_CHECKING:
    from spanreplay.runtime.order.worker_book import RecordedWorkers

IDLE_TIMEOUT: Final = "IDLE_TIMEOUT"
"""In the module of trio's cache: how long an idle thread lives."""
Job = tuple[Any, ...]
"""A job for a trio thread: a function, a callback for its outcome, a name."""


def _find_known(work: Offloaded | None) -> tuple[RecordedWorkers, int] | None:
    """Return what the recording says about a call's thread: where to look for it, and its number."""
    recorded = None if work is None else recorded_workers(work.run)
    number = None if recorded is None or work is None else recorded.thread_of(work.lane)
    return None if recorded is None or number is None else (recorded, number)


# ── anyio on asyncio ────────────────────────────────────────────────────────────────────────────────
class IdleThreads(deque[Any]):
    """The idle threads of a loop. For each call, anyio asks once whether there is one, and then whether others are old.

    Its threads become idle in a step of the loop: a thread that was idle when recorded is idle in a replay.
    """

    _next: Any = None

    def __bool__(self) -> bool:
        work = placing.get()
        if work is None:
            return len(self) > 0
        if work.is_placed:
            return False  # none is too old: that depended on time
        work.place()
        known = _find_known(work)
        thread = None if known is None else known[0].threads.get(known[1])
        if known is None or (thread is not None and thread not in self):
            return len(self) > 0
        self._next = thread
        return thread is not None

    def pop(self) -> Any:  # type: ignore[override]  # anyio gives no position
        """Return the thread that was found, or the latest one."""
        thread, self._next = self._next, None
        if thread is None:
            return super().pop()
        self.remove(thread)
        return thread


def keep_idle(module: Any) -> None:
    """Have the running loop keep its idle threads in `IdleThreads`; `module` is anyio's backend."""
    try:
        module._threadpool_idle_workers.get()
    except LookupError:
        module._threadpool_idle_workers.set(IdleThreads())
        module._threadpool_workers.set(set())


def bind(thread: Any) -> None:
    """Record that the thread started for the call being placed stands for the recorded one."""
    known = _find_known(placing.get())
    if known is not None:
        known[0].threads[known[1]] = thread


# ── trio ────────────────────────────────────────────────────────────────────────────────────────────
class _Queued:
    """A call whose thread is not idle yet: a trio thread becomes idle before it hands over its result."""

    def __init__(self, thread: Any, job: Job, start: Callable[..., None]) -> None:
        self.thread = thread
        self.job = job
        self._start = start
        self.watched: WatchedCall | None = None

    def give_up(self) -> bool:
        """Let any thread make the call; return whether it was still waiting."""
        with _lock:
            is_waiting = self in _queued
            if is_waiting:
                _queued.remove(self)
        if is_waiting:
            with unnumbered_threads():
                self._start(*self.job)
        return is_waiting


_lock: Final = _thread.allocate_lock()
_queued: Final[list[_Queued]] = []


def lend(cache: Any, gate: Order, start: Callable[..., None], job: Job) -> None:
    """Give a call to a thread of trio's cache; `start` is trio's own function."""
    threads = sys.modules[type(cache).__module__]
    setattr(threads, IDLE_TIMEOUT, threading.TIMEOUT_MAX)  # which thread is too old was a matter of time
    function, deliver, *name = job

    def hand_back(outcome: Any) -> None:
        try:
            deliver(outcome)
        finally:
            _go_on(cache)

    job = (function, hand_back, name[0] if name else None)
    work = placing.get()
    known = None if work is None or work.is_placed else _find_known(work)
    if work is None or known is None:
        start(*job)
        return
    work.place()
    recorded, number = known
    thread = recorded.threads.get(number)
    with _lock:
        queued = None if thread is None or _take(cache, thread) else _Queued(thread, job, start)
        if queued is not None:
            _queued.append(queued)
    if queued is not None:
        queued.watched = watch_call(queued.give_up, gate)
        queued.watched.is_over = queued not in _queued
        return
    if thread is None:
        thread = recorded.threads[number] = threads.WorkerThread(cache)
    _give(thread, job)


def _take(cache: Any, thread: Any) -> bool:
    """Take a thread out of the idle ones; return whether it was idle."""
    return cache._idle_workers.pop(thread, cache) is not cache


def _give(thread: Any, job: Job) -> None:
    thread._job = job
    thread._worker_lock.release()


def _go_on(cache: Any) -> None:
    """Give the calling thread, which has handed over its result, the next job that waits for it."""
    caller = threading.current_thread()
    with _lock:
        found = next((each for each in _queued if each.thread._thread is caller), None)
        if found is None or not _take(cache, found.thread):
            return
        _queued.remove(found)
    if found.watched is not None:
        found.watched.is_over = True
    _give(found.thread, found.job)
