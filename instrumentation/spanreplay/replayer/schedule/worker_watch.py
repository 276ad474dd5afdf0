"""Makes sure that no pool job waits forever for the worker that it had when the run was recorded.

One thread of a replaying process checks its pools: whether a job waits, whether a worker is idle or could be started,
and whether nothing has moved for so long that nothing will. It isn't a `threading` thread, so the agent's thread count
stays the same.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from spanreplay.model.own_threads import unnumbered_threads
from spanreplay.replayer.schedule.stall_detector import StallDetector
from spanreplay.runtime.order.counted import SERVICE
from spanreplay.runtime.order.order import Order
from spanreplay.runtime.order.wait_ends import unwatched

LOOK_MS: Final = 200
"""How often to check the pools."""
VAIN_MS: Final = 60_000
"""How long a job may wait for its worker while threads compute but nothing moves: they may only be polling."""


class _Waits:
    """Tells when jobs have waited in vain."""

    def __init__(self, gate: Order) -> None:
        self.gate = gate
        self._stall_detector: StallDetector | None = None
        self._state: object = None
        self._since = 0.0

    def is_in_vain(self, *moved: int) -> bool:
        """Whether jobs have waited too long while neither the replay nor the values `moved` changed."""
        state, now = (self.gate.head, *moved), time.monotonic()
        if self._stall_detector is None or state != self._state:
            self._stall_detector, self._state, self._since = StallDetector(None, LOOK_MS), state, now
            return False
        is_others = self.gate.working_threads > 0
        is_over = self._stall_detector.is_over(None, is_busy=True, is_awaited=is_others, waiting=self.gate.census.idle)
        return is_over or (now - self._since) * 1000 >= VAIN_MS

    def forget(self) -> None:
        """Record that no job waits."""
        self._stall_detector = None


class WatchedCall:
    """An event loop's call that waits for its thread; `let_go` gives it to any, and returns whether it was waiting."""

    def __init__(self, let_go: Callable[[], bool], gate: Order) -> None:
        self.gate = gate
        self.is_over = False
        """Whether there is nothing left to watch."""
        self._let_go = let_go
        self._waits = _Waits(gate)

    def give_up(self) -> bool:
        """Let any thread make the call; return whether it was waiting."""
        self.is_over = True
        return self._let_go()

    def look(self) -> None:
        """Give up if the call waits in vain."""
        if self.gate.is_open or self._waits.is_in_vain():
            self.give_up()


class _Watched:
    """A pool whose jobs go to their own workers."""

    def __init__(self, pool: Any, gate: Order) -> None:
        self.queue = pool._work_queue
        self._pool = weakref.ref(pool)
        self.gate = gate
        self._waits = _Waits(gate)
        # Starting a thread asks which thread is the current one
        self._stand_in = threading.Thread(name="spanreplay-workers", daemon=False)
        vars(self._stand_in)[SERVICE] = True

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to watch."""
        return self._pool() is None or self.queue.is_given_up or self.gate.is_open

    def give_up(self) -> bool:
        """Let any worker take any job and start one more; return whether a job waits that could not be taken before."""
        pool = self._pool()
        if pool is None or not self.queue.give_up():
            return False
        if len(pool._threads) < pool._max_workers and not pool._shutdown:  # all may wait for this job
            with unwatched(), unnumbered_threads(), self._standing_in(), pool._shutdown_lock:
                while pool._idle_semaphore.acquire(timeout=0):
                    pass
                pool._adjust_thread_count()
        return True

    @contextmanager
    def _standing_in(self) -> Iterator[None]:
        known: Any = threading._active  # type: ignore[attr-defined]  # where current_thread() looks
        ident = _thread.get_ident()
        if ident in known:
            yield
            return
        known[ident] = self._stand_in
        try:
            yield
        finally:
            del known[ident]

    def look(self) -> None:
        """Give up if a job waits in vain."""
        pool = self._pool()
        is_free = pool is not None and (self.queue.idle or len(pool._threads) < pool._max_workers)
        if not is_free or not self.queue.has_jobs():
            self._waits.forget()
        elif self._waits.is_in_vain(self.queue.taken):
            self.give_up()


class _Watch:
    """All watched pools of this process."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self.pools: tuple[_Watched | WatchedCall, ...] = ()
        self._is_running = False

    def add(self, watched: _Watched | WatchedCall) -> None:
        """Watch one more."""
        with self._lock:
            self.pools = (*self.pools, watched)
            if not self._is_running:
                self._is_running = True
                _thread.start_new_thread(self._run, ())

    def forget(self) -> None:
        """Start afresh in a newly forked process, which has neither this thread nor those of the pools."""
        self.__init__()  # type: ignore[misc]  # a thread that doesn't exist here may hold the lock

    def _run(self) -> None:
        pause = _thread.allocate_lock()
        pause.acquire()
        while True:
            pause.acquire(timeout=LOOK_MS / 1000)
            with self._lock:
                self.pools = tuple(each for each in self.pools if not each.is_over)
                self._is_running = bool(self.pools)
                pools = self.pools
            if not pools:
                return
            for each in pools:
                each.look()


_watch: Final = _Watch()
_abandoning: Final[list[tuple[Callable[[], bool], Order]]] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watch.forget)


def watch(pool: Any, gate: Order) -> None:
    """Give up a pool's routes once a job waits in vain."""
    _watch.add(_Watched(pool, gate))


def watch_call(let_go: Callable[[], bool], gate: Order) -> WatchedCall:
    """Release a call once it waits in vain for its thread; set `is_over` when it no longer waits."""
    watched = WatchedCall(let_go, gate)
    _watch.add(watched)
    return watched


@contextmanager
def abandoning(abandon: Callable[[], bool], gate: Order) -> Iterator[None]:
    """Within it, a program that seems stuck is asked to abandon what it waits for; `abandon` returns whether it did."""
    _abandoning.append((abandon, gate))
    try:
        yield
    finally:
        _abandoning.remove((abandon, gate))


def relieve(gate: Order) -> bool:
    """Give up every watched pool and call when the program seems stuck; return whether a blocked job can now run."""
    if sum(each.give_up() for each in _watch.pools if each.gate is gate):
        return True
    return any(abandon() for abandon, owner in tuple(_abandoning) if owner is gate)
