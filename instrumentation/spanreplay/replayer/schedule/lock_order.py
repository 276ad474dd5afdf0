"""Lets threads acquire locks, and pass other shared objects, in the order in which they did when recorded."""

from __future__ import annotations

import functools
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.lanes import Lane
from spanreplay.runtime.order.lock_order import note_taken
from spanreplay.runtime.order.order import Order
from spanreplay.runtime.order.worker_book import WorkerBook

T = TypeVar("T")
HELD_MAX: Final = 10_000


class _Queue:
    """The lanes that still have to pass one shared object."""

    __slots__ = ("left", "runs")

    def __init__(self, runs: Sequence[tuple[str, int]]) -> None:
        self.runs: deque[list[Any]] = deque([lane, count] for lane, count in runs)
        self.left: Counter[str] = Counter()
        for lane, count in runs:
            self.left[lane] += count

    def is_turn(self, lane: str) -> bool:
        """Whether a lane may pass; a lane that passed here less often when recorded, or never, passes last."""
        return not self.runs or self.runs[0][0] == lane

    def passed(self, lane: str, times: int) -> None:
        """Record that a lane has passed this many times."""
        if self.runs and self.runs[0][0] == lane:
            self.left[lane] -= times
            self.runs[0][1] -= times
            if self.runs[0][1] <= 0:
                self.runs.popleft()


class _NoWorkerBook(WorkerBook):
    """Keeps nothing: a replay chooses the workers itself."""

    def started(self, lane: Lane, count: int) -> None:
        """No-op."""

    def begun(self, lane: Lane, number: int) -> None:
        """No-op."""

    def borrowed(self, lane: Lane, thread: threading.Thread) -> None:
        """No-op."""

    def begun_in_process(self, lane: Lane, number: int) -> None:
        """No-op."""

    def ended(self, lane: str) -> None:
        """No-op."""


class RecordedLockOrder:
    """The lock acquisition order of one replay. Thread-safe; if the recorded order can't be kept, every lane passes."""

    def __init__(self, gate: Order, places: Mapping[str, Sequence[tuple[str, int]]]) -> None:
        self.is_shared = False
        self.workers: WorkerBook = _NoWorkerBook()
        self._gate = gate
        self._queues = {name: _Queue(runs) for name, runs in places.items()}
        self._held: dict[str, list[tuple[str, Callable[[], object], int]]] = {}
        """By shared object, if a turn did not come in time: effects that wait for their turn; no thread waits there."""
        self._held_lock = make_lock()

    def pass_through(self, shared: str, lane: str, effect: Callable[[], T], times: int = 1) -> T:
        """Run the effect when it is this lane's turn."""
        self.wait(shared, lane)
        try:
            return effect()
        finally:
            self._passed(shared, lane, times)

    def pass_later(self, shared: str, lane: str, effect: Callable[[], T], otherwise: T, times: int = 1) -> T:
        """Run the effect at this lane's turn; if the turn doesn't come, return `otherwise` and run the effect later.

        The waiting thread may hold a library's lock that the thread whose turn it is needs.
        """
        queue = self._queues.get(shared) if self.is_shared else None
        if queue is None:
            return effect()
        is_more = queue.left[lane] <= 0
        if shared not in self._held and self._gate.wait_until(lambda: queue.is_turn(lane), may_be_long=is_more):
            try:
                return effect()
            finally:
                self._passed(shared, lane, times)
                if shared in self._held:
                    self._do_held(shared, queue)
        with self._held_lock:
            self._held.setdefault(shared, []).append((lane, effect, times))
        if self._gate.is_open or len(self._held[shared]) > HELD_MAX:
            self.do_held(shared)
        else:
            self._do_held(shared, queue)
        return otherwise

    def _do_held(self, shared: str, queue: _Queue) -> None:
        """Run the held effects of the lanes whose turn it is now."""
        with self._held_lock:
            held = self._held.get(shared, [])
            while (first := next((each for each in held if queue.is_turn(each[0])), None)) is not None:
                held.remove(first)
                lane, effect, times = first
                effect()
                self._gate.move(functools.partial(queue.passed, lane, times))

    def do_held(self, shared: str) -> None:
        """Run the held effects in the order in which they came: no thread waits at this shared object any more."""
        self._queues.pop(shared, None)
        with self._held_lock:
            for _, effect, _ in self._held.pop(shared, ()):
                effect()

    def wait(self, shared: str, lane: str) -> None:
        """Wait for a lane's turn; if it doesn't come, no thread waits at this shared object any more."""
        queue = self._queues.get(shared) if self.is_shared else None
        if queue is None:
            return
        is_more = queue.left[lane] <= 0  # it never passed when recorded, so its wait may be for anything
        if not self._gate.wait_until(lambda: queue.is_turn(lane), may_be_long=is_more):
            self._queues.pop(shared, None)

    def take(self, shared: str, lane: str, lock: Any) -> None:
        """Take a lock when it is this lane's turn."""
        self.wait(shared, lane)
        with self._gate.census.waiting_elsewhere():
            lock.acquire()
        note_taken(self, shared, lane, lock)

    def retake(self, shared: str, lane: str, take: Callable[[Any], Any], state: Any) -> None:
        """Retake a lock when it is this lane's turn."""
        self.wait(shared, lane)
        with self._gate.census.waiting_elsewhere():
            take(state)
        self.note(shared, lane)

    def note(self, shared: str, lane: str) -> None:
        """Record that a lane has passed."""
        self._passed(shared, lane, 1)

    def _passed(self, shared: str, lane: str, times: int) -> None:
        queue = self._queues.get(shared) if self.is_shared else None
        if queue is not None:
            self._gate.move(lambda: queue.passed(lane, times))

    def count_runs(self, shared: str) -> int:
        """Always 0: a replay counts nothing."""
        return 0

    def describe(self) -> dict[str, Any]:
        """Always empty: a replay adds nothing to the manifest."""
        return {}
