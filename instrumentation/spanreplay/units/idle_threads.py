"""Idle pool threads: a fork loses them, and its pools start new ones.

Two kinds of pools keep idle threads: the standard library's, which event loops use too, and anyio's, in which Starlette
runs synchronous functions.

A value that such a thread keeps in a `threading.local`, such as a connection, is gone in a fork, and a unit that needs
it would create it again. CPython holds these values in a table per local, by thread; the fork drops the rows of
threads that don't exist in it.
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
"""Each `threading.local`, and the number of threads that keep values in it."""
_POOLS: Final = ("anyio", "concurrent", __name__.partition(".")[0])
"""Packages whose own locals are recreated with each thread."""
_SETTLING_S: Final = 2.0
"""How long a thread may take from the visible end of its work to waiting again."""
_LOOK_S: Final = 0.002


def await_idle(threads: Iterable[threading.Thread]) -> list[threading.Thread]:
    """Wait for pool threads to become idle; return the given threads that are still busy or belong to no pool."""
    left, until = list(threads), time.monotonic() + _SETTLING_S
    while True:
        idle = _find_idle(left)
        left = [thread for thread in left if thread not in idle]
        if not any(map(_is_pooled, left)) or time.monotonic() >= until:
            return left
        threading.Event().wait(_LOOK_S)


def forget() -> None:
    """In a newly forked process: reset the pools, whose threads are gone."""
    for executor in _find_executors(threads := _pool_threads()):
        executor._threads.clear()
        executor._idle_semaphore = threading.Semaphore(0)
        executor._work_queue = queue.SimpleQueue()
    for thread in threads:
        _queues().pop(thread, None)
    for workers in _find_anyio():
        workers.clear()


def find_kept() -> Kept:
    """Return the `threading.local` values of this process. It scans all objects, which takes tens of milliseconds."""
    own = {id(each) for name, each in _globals() if _is_pools(name)}
    # Not isinstance: it reads `__class__`, which would load a lazy object
    found = [each for each in _all_objects() if issubclass(type(each), threading.local) and id(each) not in own]
    return [(each, count) for each in found if not _is_pools(type(each).__module__) and (count := _count(each))]


def _all_objects() -> list[Any]:
    """Return all tracked objects, including those that a forking program has frozen (`gc.freeze`)."""
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    found = gc.get_objects()
    if is_frozen:
        gc.freeze()
    return found


def find_lost(before: Kept) -> str:
    """In a newly forked process: return the name of a local that has lost a thread's values; '' if there is none."""
    lost = next((each for each, count in before if _count(each) < count), None)
    if lost is None:
        return ""
    return next((name for name, each in _globals() if each is lost), type(lost).__qualname__)


def _count(local: threading.local) -> int:
    """Return how many threads keep values in it, plus a number that is the same in every process."""
    tables = (each for each in gc.get_referents(local) if type(each) is dict)
    return sum(type(row) is dict and bool(row) for table in tables for row in list(table.values()))


def _globals() -> Iterator[tuple[str, object]]:
    """Yield the qualified name and value of every module attribute."""
    for name, module in list(sys.modules.items()):
        if issubclass(type(module), ModuleType):  # a cffi library only pretends to be one
            names = object.__getattribute__(module, "__dict__")  # vars() would load a lazy module
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
    """Return thread → its work queue, for all pools of the standard library."""
    return getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", {})


def _find_executors(threads: Iterable[threading.Thread]) -> list[Any]:
    """Return the standard library pools that these threads belong to."""
    found = []
    for thread in threads:
        arguments = getattr(thread, "_args", None) if thread in _queues() else None
        executor = arguments[0]() if arguments else None
        if executor is not None and executor not in found:
            found.append(executor)
    return found


def _find_anyio() -> list[Any]:
    """Return anyio's collections of worker threads, all and idle, for the running loop."""
    backend: Any = sys.modules.get("anyio._backends._asyncio")
    if backend is None or sys.modules["asyncio"]._get_running_loop() is None:
        return []
    found = (getattr(backend, name).get(None) for name in ("_threadpool_workers", "_threadpool_idle_workers"))
    return [each for each in found if each is not None]
