"""Who comes next where threads meet: at standard output, at a lock.

While a run is recorded, each place keeps which lane passed it how often before another one took over; a replay lets
them pass in that order (`replayer/schedule/lock_order.py`). Until the run starts a thread nothing is counted.
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
    """What a place where threads meet asks: the book of a recording, or the order of a replay."""

    is_shared: bool
    """Whether there are, or were, several threads."""
    workers: WorkerBook
    """Which worker of a pool runs which job."""

    def pass_through(self, place: str, lane: str, effect: Callable[[], T], times: int = 1) -> T:
        """Do what a thread does at this place, when it is its turn; it stands for so many passages."""

    def pass_later(self, place: str, lane: str, effect: Callable[[], T], otherwise: T, times: int = 1) -> T:
        """The same of what may be done later, where the turn does not come in time: the thread goes on then."""

    def do_held(self, place: str) -> None:
        """Do what has been left for later."""

    def wait(self, place: str, lane: str) -> None:
        """Wait for the turn of a lane; what it then does is noted with `note`, once it is done."""

    def take(self, place: str, lane: str, lock: Any) -> None:
        """Take a lock, however long that lasts, and note it before anybody else can take it."""

    def retake(self, place: str, lane: str, take: Callable[[Any], Any], state: Any) -> None:
        """Take again, with `take`, a lock that a Condition has given back, and note it."""

    def note(self, place: str, lane: str) -> None:
        """A lane has passed; the caller sees to it that nobody else does meanwhile."""

    def count_runs(self, place: str) -> int:
        """How often another lane has taken over at a place so far."""

    def describe(self) -> dict[str, Any]:
        """Members for the manifest."""


def note_taken(book: LockOrder, place: str, lane: str, lock: Any) -> None:
    """Note that a lane has taken a lock; at an interrupt give it back: whoever asked does not know that it has it."""
    try:
        book.note(place, lane)
    except BaseException:
        lock.release()
        raise


class _Place:
    __slots__ = ("count", "lane", "lock", "runs")

    def __init__(self) -> None:
        self.lock = make_lock()  # a signal handler may print while the main thread prints
        self.runs: list[list[Any]] = []
        self.lane = ""
        self.count = 0


class RecordingLockOrder:
    """Counts who passes each place of one run that is recorded. Thread-safe."""

    def __init__(self) -> None:
        self.is_shared = False
        self.workers = WorkerBook()
        self._places: dict[str, _Place] = {}
        self._total = 0
        _books.add(self)

    def pass_through(self, place: str, lane: str, effect: Callable[[], T], times: int = 1) -> T:
        """Do it, and count it; nobody else passes meanwhile."""
        if not self.is_shared:
            return effect()
        found = self._places.get(place) or self._places.setdefault(place, _Place())
        with found.lock:
            result = effect()
            self._count(found, lane, times)
        return result

    def pass_later(self, place: str, lane: str, effect: Callable[[], T], otherwise: T, times: int = 1) -> T:
        """Do it now, and count it."""
        return self.pass_through(place, lane, effect, times)

    def do_held(self, place: str) -> None:
        """No-op: nothing is left for later."""

    def wait(self, place: str, lane: str) -> None:
        """Nobody waits while a run is recorded."""

    def take(self, place: str, lane: str, lock: Any) -> None:
        """Take a lock, and count it."""
        lock.acquire()
        note_taken(self, place, lane, lock)

    def retake(self, place: str, lane: str, take: Callable[[Any], Any], state: Any) -> None:
        """Take a lock again, and count it; a Condition gives it back, whatever happens."""
        take(state)
        self.note(place, lane)

    def note(self, place: str, lane: str) -> None:
        """Count who has passed; the lock that the caller holds keeps others out."""
        if self.is_shared:
            found = self._places.get(place) or self._places.setdefault(place, _Place())
            self._count(found, lane, 1)

    def count_runs(self, place: str) -> int:
        """How often another lane has taken over at a place so far."""
        found = self._places.get(place)
        return 0 if found is None else len(found.runs)

    def _count(self, place: _Place, lane: str, times: int) -> None:
        if place.lane == lane:
            place.runs[-1][1] += times
        elif self._total < config.LOCK_ORDER_MAX:
            self._total += 1
            place.lane = lane
            place.runs.append([lane, times])

    def describe(self) -> dict[str, Any]:
        """Place → (lane, how often) in order; places that only one lane passed are left out."""
        shared = {name: place.runs for name, place in list(self._places.items()) if len(place.runs) > 1}
        if not shared:
            return self.workers.describe()
        lanes = list(dict.fromkeys(lane for runs in shared.values() for lane, _ in runs))
        numbers = {lane: number for number, lane in enumerate(lanes)}
        flat = {name: [n for lane, count in runs for n in (numbers[lane], count)] for name, runs in shared.items()}
        return {MEMBER: {"lanes": lanes, "places": flat}, **self.workers.describe()}

    def forked(self) -> None:
        """This is a forked child."""
        self._places = {}  # a lock that another thread held would never be given back
        self.workers = WorkerBook()


_books: Final[WeakSet[RecordingLockOrder]] = WeakSet()
"""Of the runs that are not forgotten; what `os.register_at_fork` is given is kept for ever."""


def _forked() -> None:
    for book in list(_books):
        book.forked()


os.register_at_fork(after_in_child=_forked)


def read_lock_order(manifest: Mapping[str, Any]) -> dict[str, list[tuple[str, int]]]:
    """Place → (lane, how often) in order, as a manifest states it; {} if it states nothing that can be read."""
    stated = manifest.get(MEMBER)
    try:
        lanes, places = stated["lanes"], stated["places"]  # type: ignore[index]
        return {
            str(name): [(str(lanes[lane]), int(count)) for lane, count in zip(flat[::2], flat[1::2], strict=True)]
            for name, flat in places.items()
        }
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return {}
