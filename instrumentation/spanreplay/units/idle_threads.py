"""Threads of pools that have nothing to do: a fork does without them, and its pools start new ones.

Two kinds of pools keep their threads: that of the standard library, which event loops use too, and that of anyio, in
which Starlette runs functions that are no coroutines.

What such a thread keeps in a `threading.local`, as a connection, is gone in a fork, and a unit that needs it would make
it again. CPython holds that in a table of each local, by thread; the fork drops the rows of threads that it has not.
"""

from __future__ import annotations

import gc
import queue
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Final

__all__ = ["Kept", "await_idle", "find_kept", "find_lost", "forget"]

Kept = list[tuple[threading.local, int]]
"""Each `threading.local`, and how many threads keep something in it."""
_POOLS: Final = ("anyio", "concurrent", __name__.partition(".")[0])
"""Packages whose own locals are made anew with each thread."""
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


def find_kept() -> Kept:
    """What the threads of this process keep for themselves. Looks through all objects: tens of milliseconds."""
    own = {id(each) for name, each in _globals() if _is_pools(name)}
    # Not isinstance: it asks an object for its class, and a lazy one would be made for that
    found = [each for each in _all_objects() if issubclass(type(each), threading.local) and id(each) not in own]
    return [(each, count) for each in found if not _is_pools(type(each).__module__) and (count := _count(each))]


def _all_objects() -> list[Any]:
    """Those too that a program which forks has taken out of garbage collections."""
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    found = gc.get_objects()
    if is_frozen:
        gc.freeze()
    return found


def find_lost(before: Kept) -> str:
    """In a process that was just forked: a local that has lost what a thread kept in it; '' if none has."""
    lost = next((each for each, count in before if _count(each) < count), None)
    if lost is None:
        return ""
    return next((name for name, each in _globals() if each is lost), type(lost).__qualname__)


def _count(local: threading.local) -> int:
    """How many threads keep something in it, beside what is the same in every process."""
    tables = (each for each in gc.get_referents(local) if type(each) is dict)
    return sum(type(row) is dict and bool(row) for table in tables for row in list(table.values()))


def _globals() -> Iterator[tuple[str, object]]:
    """Whole name and value of all that stands in a module."""
    for name, module in list(sys.modules.items()):
        if issubclass(type(module), ModuleType):  # a library of cffi only says that it is one
            names = object.__getattribute__(module, "__dict__")  # vars() would load a lazy one
            yield from ((f"{name}.{key}", value) for key, value in list(names.items()))


def _is_pools(name: str) -> bool:
    return name.partition(".")[0] in _POOLS


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
