"""In a replay, gives each worker process of a pool its own queue with the items that it took when recorded.

An item goes to any worker if its own has ended or is never started. An item that no worker had begun when the pool
ended is given to none, unless something waits for it.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.call import LOST
from spanreplay.model.own_threads import make_lock
from spanreplay.replayer.schedule.pool_workers import recorded_workers
from spanreplay.replayer.schedule.worker_watch import WatchedCall, watch_call

if TYPE_CHECKING:
    from spanreplay.runtime.order.order import Order
    from spanreplay.runtime.order.worker_book import RecordedWorkers
    from spanreplay.runtime.run import Run

MADE: Final = "_spanreplay_made"
"""Attribute of the queue of an executor's workers: the arguments that it was made with."""
_LOOK_S: Final = 0.005
_LOCK_S_MAX: Final = 10.0
"""How long to wait for workers to leave their queues: a worker that was killed there leaves its queue locked."""


class RoutedItems:
    """Offers what pools use of the single queue that their workers share; each worker gets a queue of its own."""

    def __init__(
        self,
        make: Callable[[], Any],
        recorded: RecordedWorkers,
        gate: Order,
        limits: Callable[[], tuple[int, int | None]],
    ) -> None:
        self._make = make
        self._recorded = recorded
        self._gate = gate
        self._limits = limits
        """The number of workers at once, and the number of items each takes before it ends."""
        self._lock = make_lock()
        self._queues: list[Any] = []
        self._given: list[int] = []
        self._ends: list[int] = []
        self._processes: dict[int, Any] = {}
        self.wanted = 0
        """How many workers the items so far need."""
        self._held: list[Callable[[], None]] = []
        self._watched: WatchedCall | None = None
        self._reader = _Readers(self._queues)
        self._rlock = self._reader

    # ── workers ─────────────────────────────────────────────────────────────────────────────────────
    def hire(self, number: int, process: Any) -> Any:
        """Return the queue of one more worker."""
        with self._lock:
            self._processes[number] = process
            return self._queue(number)

    @property
    def hired(self) -> int:
        """How many workers were started."""
        return len(self._processes)

    def expect(self, lane: str) -> None:
        """Announce an item that needs its worker."""
        number = self._recorded.process_of(lane)
        if number is not None and self._is_possible(number):
            self.wanted = max(self.wanted, number + 1)

    def _is_possible(self, number: int) -> bool:
        workers_max, items_max = self._limits()
        return number < workers_max or items_max is not None

    def _queue(self, number: int) -> Any:
        while len(self._queues) <= number:
            self._queues.append(self._make())
            self._given.append(0)
            self._ends.append(0)
        return self._queues[number]

    def _has_ended(self, number: int) -> bool:
        process = self._processes.get(number)
        return process is not None and process.exitcode is not None

    # ── items ───────────────────────────────────────────────────────────────────────────────────────
    def find(self, item: Any) -> Any:
        """Return the queue for an item, or the queue for None, which tells a worker to end."""
        with self._lock:
            if item is None:
                number = self._choose(self._ends)
                self._ends[number] += 1
                return self._queues[number]
            number = self._owner(_lane_of(item))
            queue = self._queue(number)
            self._given[number] += 1
            return queue

    def _hold(self, lane: str, give: Callable[[], None]) -> bool:
        """Keep an item that no worker began when recorded, until something waits for it in vain."""
        with self._lock:
            is_over = self._watched is not None and self._watched.is_over
            if not lane or is_over or self._gate.is_open or self._recorded.may_have_run(lane):
                return False
            self._held.append(give)
            if self._watched is None:
                self._watched = watch_call(self._let_go, self._gate)
            return True

    def _let_go(self) -> bool:
        with self._lock:
            held, self._held = self._held, []
        for give in held:
            give()
        return bool(held)

    def _owner(self, lane: str) -> int:
        number = self._recorded.process_of(lane)
        if number is None or not self._is_possible(number) or self._has_ended(number):
            return self._choose(self._given)
        items_max = self._limits()[1]
        is_full = items_max is not None and number < len(self._given) and self._given[number] >= items_max
        return self._choose(self._given) if is_full else number

    def _choose(self, counts: list[int]) -> int:
        """Return the worker with the smallest count, among those that have not ended."""
        self._queue(0)
        here = [number for number in self._processes if not self._has_ended(number)]
        return min(here or range(len(self._queues)), key=lambda number: counts[number])

    # ── the interface for an executor ───────────────────────────────────────────────────────────────────
    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item, or None."""
        if item is None or not self._hold(_lane_of(item), lambda: self.find(item).put(item)):
            self.find(item).put(item, block, timeout)

    def put_nowait(self, item: Any) -> None:
        """Add an item, or None, without waiting. Raises: queue.Full."""
        self.put(item, False)

    def full(self) -> bool:
        """Whether as many items wait as one queue would hold."""
        try:
            return int(sum(each.qsize() for each in self._queues)) > self._limits()[0]
        except NotImplementedError:  # macOS
            return any(each.full() for each in self._queues)

    def __getattr__(self, name: str) -> Any:
        if name not in ("join_thread", "cancel_join_thread", "_terminate_broken"):
            raise AttributeError(name)
        return lambda: [getattr(each, name)() for each in self._queues]

    def close(self) -> None:
        """Close all queues."""
        for each in self._queues:
            each.close()

    # ── the interface for a `multiprocessing.Pool` ──────────────────────────────────────────────────────
    def send(self, item: Any) -> None:
        """Add an item, or None."""
        if item is None or not self._hold(_lane_of(item), lambda: self.find(item)._writer.send(item)):
            self.find(item)._writer.send(item)


def _lane_of(item: Any) -> str:
    return str(getattr(getattr(item, "fn", None) or item[2], "lane", ""))


class _Readers:
    """The reading ends of the workers' queues, for emptying or closing them.

    A queue is emptied only under its own lock: a worker that reads at the same time would get half an item.
    """

    def __init__(self, queues: list[Any]) -> None:
        self._queues = queues
        self._mine: list[Any] = []

    def acquire(self) -> None:
        """Keep the workers from taking more; a worker that waits for an item is about to learn that there is none."""
        left, since = list(self._queues), time.monotonic()
        while left and time.monotonic() - since < _LOCK_S_MAX:
            for each in tuple(left):
                if each._rlock.acquire(timeout=_LOOK_S):
                    left.remove(each)
                    self._mine.append(each)
            while self.poll():  # the thread that tells them may wait for room in a queue
                self.recv()

    def poll(self) -> bool:
        """Whether an item waits."""
        return any(each._reader.poll() for each in self._mine)

    def recv(self) -> Any:
        """Return one waiting item."""
        return next((each._reader.recv() for each in self._mine if each._reader.poll()), None)

    def close(self) -> None:
        """Close all reading ends."""
        for each in self._queues:
            each._reader.close()


def _known(run: Run) -> RecordedWorkers | None:
    recorded = recorded_workers(run)
    is_whole = run.session is not None and not run.session.recording.root.manifest.get(LOST)
    return recorded if recorded is not None and recorded.names_processes and is_whole else None


def route_executor(run: Run, pool: Any) -> None:
    """Give the workers of a new `ProcessPoolExecutor` queues of their own."""
    recorded, made = _known(run), vars(pool._call_queue).get(MADE)
    if recorded is None or made is None or run.session is None:
        return
    kind = type(pool._call_queue)

    def make() -> Any:
        queue = kind(*made[0], **made[1])
        queue._ignore_epipe = True
        return queue

    limits = (pool._max_workers, getattr(pool, "_max_tasks_per_child", None))
    pool._call_queue = RoutedItems(make, recorded, run.session.gate, lambda: limits)


def expect(pool: Any, lane: str) -> None:
    """An item is about to be submitted."""
    if isinstance(pool._call_queue, RoutedItems):
        pool._call_queue.expect(lane)


def hire_as_recorded(pool: Any) -> bool:
    """Start the workers that the items so far need; return whether that is known."""
    items = pool._call_queue
    if not isinstance(items, RoutedItems):
        return False
    while items.hired < max(items.wanted, 1) and len(pool._processes) < pool._max_workers:
        pool._spawn_process()
    return True


def route_pool(run: Run, pool: Any) -> None:
    """Give the workers of a new `multiprocessing.Pool` their own queues, unless its queue has already been replaced."""
    from multiprocessing.queues import SimpleQueue

    recorded = _known(run)
    if recorded is None or run.session is None or type(pool._inqueue) is not SimpleQueue:
        return
    known = weakref.ref(pool)

    def limits() -> tuple[int, int | None]:
        found = known()
        return (0, None) if found is None else (found._processes, found._maxtasksperchild)

    pool._inqueue = RoutedItems(pool._ctx.SimpleQueue, recorded, run.session.gate, limits)
    pool._quick_put = pool._inqueue.send
