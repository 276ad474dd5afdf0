"""A pool's queue in which each worker finds the jobs that it had when the run was recorded.

No worker may wait forever for a job, and no job for a worker. Any worker takes a job, whichever worker had it, once

1. its worker has died, or was never started (`free`);
2. ordering has ended;
3. the pool has been given up: nothing moves any more (`worker_watch.py`).
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import os
import queue
import threading
import weakref
from _queue import SimpleQueue
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import thread as pools
from sys import _getframe
from typing import Any, Final

from spanreplay.replayer.schedule.thread_waits import PENDING
from spanreplay.runtime.order.order import Order
from spanreplay.runtime.order.pool_workers import calling_worker

JOB: Final = "_spanreplay_job"
"""Attribute of the items in a pool's queue: the lane of the job."""
ANYBODY: Final = -1
"""Number of any thread that is not a worker of the pool, and of a job that any worker may take."""
_HELD: Final = -2
"""Number for jobs that were cancelled before they began: a worker that took one would wait for its cancellation."""
_END: Final = -3
"""Number for None, which tells a worker to end."""
_LOOK_S: Final = 1.0
"""How often a worker without a job checks whether ordering has ended, and whether another worker has died."""
_WORKER_CODE: Final = getattr(getattr(pools, "_worker", None), "__code__", None)
_queues: Final[weakref.WeakSet[RoutedQueue]] = weakref.WeakSet()


class _Entry:
    __slots__ = ("item", "order", "to")

    def __init__(self, item: Any, to: int, order: int) -> None:
        self.item = item
        self.to = to
        self.order = order


class RoutedQueue:
    """Offers the parts of `SimpleQueue` that `ThreadPoolExecutor` uses. Thread-safe.

    Uses the interpreter's own locks: a thread that waits here is a worker without a job and doesn't count as waiting.
    The garbage collector may run within any method, end a pool there and call other methods. So `put` takes no lock,
    and methods that lock expect that items they found may be gone.
    """

    def __init__(self, number_of: Callable[[str], int], gate: Order, workers_max: int) -> None:
        self._number_of = number_of
        self._gate = gate
        self._workers_max = workers_max
        self.is_given_up = False
        """Whether any worker takes any job, because the recorded worker could not come."""
        self.when_given_up: list[Callable[[], None]] = []
        self.taken = 0
        """How many items have left the queue."""
        self.idle: set[int] = set()
        """Threads that wait for an item."""
        self._orders = itertools.count()
        self._inbox: deque[_Entry] = deque()
        self._lock = _thread.RLock()
        self._heaps: dict[int, deque[_Entry]] = {each: deque() for each in (ANYBODY, _HELD, _END)}
        self._wakes: dict[int, SimpleQueue[None]] = {}
        self._owners: dict[int, threading.Thread] = {}
        _queues.add(self)

    def put(self, item: Any) -> None:
        """Add a job, or None."""
        to = _END if item is None else self._find_owner(item)
        self._inbox.append(_Entry(item, to, next(self._orders)))
        self._wake((to, ANYBODY) if to >= 0 else None)

    def _find_owner(self, item: Any) -> int:
        lane = getattr(item, JOB, None)
        if lane is None:
            return ANYBODY
        if self.is_held(lane):
            item.future.add_done_callback(lambda _: self._wake(None))
            return _HELD
        number = self._number_of(lane)
        owner = self._owners.get(number)
        is_there = number < self._workers_max and not (owner is not None and _has_ended(owner))
        return number if is_there else ANYBODY

    def is_held(self, lane: str) -> bool:
        """Whether no worker takes a job: it was cancelled before it began."""
        return lane in self._gate.cancelled

    def free(self, future: Any, workers: int) -> bool:
        """Release a job whose worker is not among the first `workers`; return whether there was one."""
        with self._lock:
            self._sort()
            for to, heap in self._heaps.copy().items():
                for entry in tuple(heap) if to >= workers else ():
                    if entry.item.future is future:
                        heap.remove(entry)
                        self._heaps[ANYBODY].append(entry)
                        self._wake(None)
                        return True
        return False

    def get(self, block: bool = True) -> Any:
        """Return the next item for the calling worker; for any other thread, the next item of all."""
        number = self._number_of_caller(_getframe(1 if block else 2).f_code)
        wake = self._wakes.get(number) or self._wakes.setdefault(number, SimpleQueue())
        thread = _thread.get_ident()
        while True:
            entry = self._take(number)
            if entry is not None:
                return entry.item
            if not block:
                raise queue.Empty
            self.idle.add(thread)
            try:
                with contextlib.suppress(queue.Empty):
                    wake.get(timeout=_LOOK_S)
            finally:
                self.idle.discard(thread)

    def get_nowait(self) -> Any:
        """`get` without waiting. Raises: queue.Empty."""
        return self.get(block=False)

    def qsize(self) -> int:
        """How many items wait."""
        return len(self._inbox) + sum(map(len, self._heaps.copy().values()))

    def empty(self) -> bool:
        """Whether no item waits."""
        return not self.qsize()

    def has_jobs(self) -> bool:
        """Whether a job waits."""
        with self._lock:
            self._sort()
            return any(heap for to, heap in self._heaps.copy().items() if to != _END)

    def give_up(self) -> bool:
        """Let any worker take any job; return whether a job waits that could not be taken before."""
        if self.is_given_up or not self.has_jobs():
            return False
        self.is_given_up = True
        for each in self.when_given_up:
            each()
        self._wake(None)
        return True

    # ── which worker takes which item ───────────────────────────────────────────────────────────────────
    def _number_of_caller(self, code: Any) -> int:
        # A thread that cancels what is left in a queue takes all of it, even if it is a worker
        worker = calling_worker() if code is _WORKER_CODE else None
        if worker is None or worker.queue is not self:
            return ANYBODY
        self._owners.setdefault(worker.number, threading.current_thread())
        return worker.number

    def _take(self, number: int) -> _Entry | None:
        with self._lock:
            while True:
                self._sort()
                heap = self._find(number)
                if heap is None:
                    return None
                with contextlib.suppress(IndexError):  # a finalizer that ran in between took it
                    entry = heap.popleft()
                    self.taken += 1
                    return entry

    def _find(self, number: int) -> deque[_Entry] | None:
        """Return the deque that holds the next item for a worker."""
        heaps = self._heaps
        if number == ANYBODY or self.is_given_up or self._gate.is_open:
            return _first(heap for to, heap in heaps.copy().items() if to != _END) or heaps[_END] or None
        found = _first((heaps.get(number, ()), heaps[ANYBODY]))
        if found is not None:
            return found
        gone = (heaps.get(each, ()) for each, owner in self._owners.copy().items() if _has_ended(owner))
        held = heaps[_HELD]
        if held and (held[0].item.future._state != PENDING or heaps[_END]):
            return held
        return _first(gone) or heaps[_END] or None

    def _sort(self) -> None:
        while self._inbox:
            entry = self._inbox.popleft()
            self._heaps.setdefault(entry.to, deque()).append(entry)

    def _wake(self, numbers: Collection[int] | None) -> None:
        """Let these workers check again, or all of them."""
        for number, wake in self._wakes.copy().items():
            if (numbers is None or number in numbers) and wake.empty():
                wake.put(None)


def _first(heaps: Iterable[Any]) -> deque[_Entry] | None:
    """Return the deque whose first item came first."""
    return min(filter(None, heaps), key=lambda heap: heap[0].order, default=None)


def _has_ended(thread: threading.Thread) -> bool:
    known: Any = threading._active  # type: ignore[attr-defined]  # `is_alive` would count as the agent's query
    return known.get(thread.ident) is not thread


def _forget_locks() -> None:
    for each in list(_queues):
        each._lock = _thread.RLock()  # another thread, which doesn't exist here, may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)
