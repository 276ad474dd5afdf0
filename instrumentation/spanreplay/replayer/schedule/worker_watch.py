"""Sees to it that no job of a pool waits for ever for the worker that it had when the run was recorded.

One thread of a process that replays looks at its pools: a job waits, a worker is idle or could be started, and nothing
has moved for so long that nothing will. It is no thread of `threading`: the agent's count of threads stays what it was.
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
from spanreplay.replayer.schedule.patience import Patience
from spanreplay.runtime.order.counted import SERVICE
from spanreplay.runtime.order.order import Order
from spanreplay.runtime.order.wait_ends import unwatched

LOOK_MS: Final = 200
"""How often to look at the pools."""
VAIN_MS: Final = 60_000
"""How long a job may wait for its worker while nothing moves although threads compute: they may only look around."""


class _Waits:
    """Tells when jobs have waited in vain."""

    def __init__(self, gate: Order) -> None:
        self.gate = gate
        self._patience: Patience | None = None
        self._state: object = None
        self._since = 0.0

    def is_in_vain(self, *moved: int) -> bool:
        """Whether jobs have waited for too long while nothing moved, in the replay or of what is given."""
        state, now = (self.gate.head, *moved), time.monotonic()
        if self._patience is None or state != self._state:
            self._patience, self._state, self._since = Patience(None, LOOK_MS), state, now
            return False
        is_others = self.gate.working_threads > 0
        is_over = self._patience.is_over(None, is_busy=True, is_awaited=is_others, waiting=self.gate.crew.idle)
        return is_over or (now - self._since) * 1000 >= VAIN_MS

    def forget(self) -> None:
        """None waits."""
        self._patience = None


class WatchedCall:
    """A call of an event loop that waits for its thread; `let_go` gives it to any, and says whether it was waiting."""

    def __init__(self, let_go: Callable[[], bool], gate: Order) -> None:
        self.gate = gate
        self.is_over = False
        """Whether there is nothing to see to any more."""
        self._let_go = let_go
        self._waits = _Waits(gate)

    def give_up(self) -> bool:
        """Let any thread make the call; whether it was waiting."""
        self.is_over = True
        return self._let_go()

    def look(self) -> None:
        """Give up if it waits in vain."""
        if self.gate.is_open or self._waits.is_in_vain():
            self.give_up()


class _Watched:
    """A pool whose jobs are given to their own workers."""

    def __init__(self, pool: Any, gate: Order) -> None:
        self.queue = pool._work_queue
        self._pool = weakref.ref(pool)
        self.gate = gate
        self._waits = _Waits(gate)
        # Whoever starts a thread is asked which one it is itself
        self._stand_in = threading.Thread(name="spanreplay-workers", daemon=False)
        vars(self._stand_in)[SERVICE] = True

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to see to any more."""
        return self._pool() is None or self.queue.is_given_up or self.gate.is_open

    def give_up(self) -> bool:
        """Let any worker take any job, and start one more; whether a job waits that could not be taken before."""
        pool = self._pool()
        if pool is None or not self.queue.give_up():
            return False
        if len(pool._threads) < pool._max_workers and not pool._shutdown:  # all may wait for the job that waits
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
        """Look at one more."""
        with self._lock:
            self.pools = (*self.pools, watched)
            if not self._is_running:
                self._is_running = True
                _thread.start_new_thread(self._run, ())

    def forget(self) -> None:
        """Start anew in a process that was just forked, which has neither the thread nor those of the pools."""
        self.__init__()  # type: ignore[misc]  # the lock may be held by a thread that is not here

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
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watch.forget)


def watch(pool: Any, gate: Order) -> None:
    """Give up the routes of a pool once a job waits in vain."""
    _watch.add(_Watched(pool, gate))


def watch_call(let_go: Callable[[], bool], gate: Order) -> WatchedCall:
    """Let a call that waits for its thread go once that is in vain; say `is_over` when it waits no longer."""
    watched = WatchedCall(let_go, gate)
    _watch.add(watched)
    return watched


def relieve(gate: Order) -> bool:
    """Give up all of them where the program seems to be stuck; whether a job goes on that could not before."""
    return bool(sum(each.give_up() for each in _watch.pools if each.gate is gate))
