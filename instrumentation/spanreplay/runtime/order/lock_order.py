"""Lock acquisition order: the order in which threads pass shared objects such as standard output or a lock.

While recording, each shared object keeps how often each lane passed it before another lane took over; a replay lets
threads pass in that order (`replayer/schedule/lock_order.py`). Nothing is counted until the run starts a thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

from spanreplay.model import config
from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.order.worker_book import WorkerBook

T = TypeVar("T")
MEMBER: Final = "handovers"
STDOUT: Final = "stdout"


class LockOrder(Protocol):
    """The interface that shared objects use: a recording notes the order, a replay enforces it."""

    is_shared: bool
    """Whether the run has, or had when recorded, several threads."""
    workers: WorkerBook
    """Which worker of a pool runs which job."""

    def pass_through(self, shared: str, lane: str, effect: Callable[[], T], times: int = 1) -> T:
        """Run a thread's `effect` at this shared object when it is its turn; it counts as `times` passages."""

    def pass_later(self, shared: str, lane: str, effect: Callable[[], T], otherwise: T, times: int = 1) -> T:
        """Like `pass_through`, but if the turn does not come in time, defer the effect and return `otherwise`."""

    def do_held(self, shared: str) -> None:
        """Run the effects that were deferred."""

    def wait(self, shared: str, lane: str) -> None:
        """Wait for a lane's turn; call `note` once its effect is done."""

    def take(self, shared: str, lane: str, lock: Any) -> None:
        """Acquire a lock, without a time limit, and note it before anybody else can acquire it."""

    def retake(self, shared: str, lane: str, take: Callable[[Any], Any], state: Any) -> None:
        """Reacquire, with `take`, a lock that a Condition has released, and note it."""

    def note(self, shared: str, lane: str) -> None:
        """Note that a lane has passed; the caller makes sure that nobody else passes meanwhile."""

    def count_runs(self, shared: str) -> int:
        """How often another lane has taken over at a shared object so far."""

    def describe(self) -> dict[str, Any]:
        """Members for the manifest."""


def note_taken(book: LockOrder, shared: str, lane: str, lock: Any) -> None:
    """Note that a lane has acquired a lock; if interrupted, release it: the caller doesn't know that it holds it."""
    try:
        book.note(shared, lane)
    except BaseException:
        lock.release()
        raise


class _Passages:
    __slots__ = ("count", "lane", "lock", "runs")

    def __init__(self) -> None:
        self.lock = make_lock()  # a signal handler may print while the main thread prints
        self.runs: list[list[Any]] = []
        self.lane = ""
        self.count = 0


class RecordingLockOrder:
    """Counts the passages of each shared object in a run that is being recorded. Thread-safe."""

    def __init__(self) -> None:
        self.is_shared = False
        self.workers = WorkerBook()
        self._passages: dict[str, _Passages] = {}
        self._total = 0
        _books.add(self)

    def pass_through(self, shared: str, lane: str, effect: Callable[[], T], times: int = 1) -> T:
        """Run the effect and count it; nobody else passes meanwhile."""
        if not self.is_shared:
            return effect()
        found = self._passages.get(shared) or self._passages.setdefault(shared, _Passages())
        with found.lock:
            result = effect()
            self._count(found, lane, times)
        return result

    def pass_later(self, shared: str, lane: str, effect: Callable[[], T], otherwise: T, times: int = 1) -> T:
        """Run the effect now and count it."""
        return self.pass_through(shared, lane, effect, times)

    def do_held(self, shared: str) -> None:
        """No-op: nothing is deferred."""

    def wait(self, shared: str, lane: str) -> None:
        """No-op: nobody waits while recording."""

    def take(self, shared: str, lane: str, lock: Any) -> None:
        """Acquire a lock and count it."""
        lock.acquire()
        note_taken(self, shared, lane, lock)

    def retake(self, shared: str, lane: str, take: Callable[[Any], Any], state: Any) -> None:
        """Reacquire a lock and count it; the Condition releases it in any case."""
        take(state)
        self.note(shared, lane)

    def note(self, shared: str, lane: str) -> None:
        """Count the lane's passage; the lock that the caller holds keeps others out."""
        if self.is_shared:
            found = self._passages.get(shared) or self._passages.setdefault(shared, _Passages())
            self._count(found, lane, 1)

    def count_runs(self, shared: str) -> int:
        """How often another lane has taken over at a shared object so far."""
        found = self._passages.get(shared)
        return 0 if found is None else len(found.runs)

    def _count(self, shared: _Passages, lane: str, times: int) -> None:
        if shared.lane == lane:
            shared.runs[-1][1] += times
        elif self._total < config.LOCK_ORDER_MAX:
            self._total += 1
            shared.lane = lane
            shared.runs.append([lane, times])

    def describe(self) -> dict[str, Any]:
        """Shared object → (lane, count) in order; shared objects that only one lane passed are left out."""
        shared = {name: shared.runs for name, shared in list(self._passages.items()) if len(shared.runs) > 1}
        if not shared:
            return self.workers.describe()
        lanes = list(dict.fromkeys(lane for runs in shared.values() for lane, _ in runs))
        numbers = {lane: number for number, lane in enumerate(lanes)}
        flat = {name: [n for lane, count in runs for n in (numbers[lane], count)] for name, runs in shared.items()}
        return {MEMBER: {"lanes": lanes, "places": flat}, **self.workers.describe()}

    def forked(self) -> None:
        """Reset in a forked child."""
        self._passages = {}  # a lock that another thread held would never be released
        self.workers = WorkerBook()


_books: Final[WeakSet[RecordingLockOrder]] = WeakSet()
"""Books of live runs; `os.register_at_fork` would keep them forever."""


def _forked() -> None:
    for book in list(_books):
        book.forked()


os.register_at_fork(after_in_child=_forked)


def read_lock_order(manifest: Mapping[str, Any]) -> dict[str, list[tuple[str, int]]]:
    """Shared object → (lane, count) in order, as a manifest states it; {} if it states nothing readable."""
    stated = manifest.get(MEMBER)
    try:
        lanes, places = stated["lanes"], stated["places"]  # type: ignore[index]
        return {
            str(name): [(str(lanes[lane]), int(count)) for lane, count in zip(flat[::2], flat[1::2], strict=True)]
            for name, flat in places.items()
        }
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return {}
