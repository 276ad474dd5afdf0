"""Threads of pools that have nothing to do: a fork does without them, and its pools start new ones.

Two kinds of pools keep their threads: that of the standard library, which event loops use too, and that of anyio, in
which Starlette runs functions that are no coroutines.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, Final

__all__ = ["await_idle", "forget"]

_SETTLING_S: Final = 2.0
"""How long a thread may take from the end of its work, which others see, to its next wait."""
_LOOK_S: Final = 0.002


def await_idle(threads: Iterable[threading.Thread]) -> list[threading.Thread]:
    """Those of these threads that are at work, or that no pool has."""
    left, until = list(threads), time.monotonic() + _SETTLING_S
    while True:
        idle = _find_idle(left)
        left = [thread for thread in left if thread not in idle]
        if not any(map(_is_pooled, left)) or time.monotonic() >= until:
            return left
        threading.Event().wait(_LOOK_S)


def forget() -> None:
    """In a process that was just forked: the pools have no threads."""
    for executor in _find_executors(threads := _pool_threads()):
        executor._threads.clear()
        executor._idle_semaphore = threading.Semaphore(0)
        executor._work_queue = queue.SimpleQueue()
    for thread in threads:
        _queues().pop(thread, None)
    for workers in _find_anyio():
        workers.clear()


def _find_idle(threads: Iterable[threading.Thread]) -> set[threading.Thread]:
    idle: set[threading.Thread] = set()
    for executor in _find_executors(threads):
        if executor._idle_semaphore._value == len(executor._threads) and executor._work_queue.empty():
            idle |= executor._threads
    for workers in _find_anyio():
        idle.update(each for each in workers if each in getattr(each, "idle_workers", ()))
    return idle


def _is_pooled(thread: threading.Thread) -> bool:
    return thread in _queues() or hasattr(thread, "idle_workers")


def _pool_threads() -> list[threading.Thread]:
    return list(_queues())


def _queues() -> Any:
    """Thread → the queue that it takes its work from, of all pools of the standard library."""
    return getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", {})


def _find_executors(threads: Iterable[threading.Thread]) -> list[Any]:
    """The pools of the standard library that these threads belong to."""
    found = []
    for thread in threads:
        arguments = getattr(thread, "_args", None) if thread in _queues() else None
        executor = arguments[0]() if arguments else None
        if executor is not None and executor not in found:
            found.append(executor)
    return found


def _find_anyio() -> list[Any]:
    """The sets of anyio's worker threads, all and idle, of the loop that runs here."""
    backend: Any = sys.modules.get("anyio._backends._asyncio")
    if backend is None or sys.modules["asyncio"]._get_running_loop() is None:
        return []
    found = (getattr(backend, name).get(None) for name in ("_threadpool_workers", "_threadpool_idle_workers"))
    return [each for each in found if each is not None]
