"""Who is at work in a process that replays, and who waits.

The main thread, other threads of the agent and calls of pools are at work until they end, but for while they wait for
their turn or for each other. Daemon threads that a library starts do not count before they wait for their turn:
nobody knows what they wait for otherwise.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spanreplay.runtime.order.counted import SERVICE, counted, nothing


class Crew:
    """Counts under the condition of an order gate; `tell` is called with it held, whenever somebody goes to work.

    `gate`: whose crew it is. Threads that were counted for another gate, whose replay has ended, never count here.
    """

    def __init__(
        self, condition: threading.Condition, tell: Callable[[], None], *, gate: object | None = None, busy: int = 1
    ) -> None:
        self._gate = self if gate is None else gate
        self._condition = condition
        self._tell = tell
        self._busy = busy
        self._waiting = 0
        self._blocked = 0
        self.waiters: set[int] = set()
        """Native ids of those that wait."""
        self._pollers: set[int] = set()
        self.asleep = 0
        """Those at work that sleep for a moment, and go on by themselves."""
        self.told_at = 0.0
        """When a thread was last told what it waited for, on the monotonic clock."""

    @property
    def working(self) -> int:
        """Those at work, the calling thread included."""
        return self._busy - self._waiting - self._blocked

    @property
    def size(self) -> int:
        """Those that count, whether they are at work or wait."""
        return self._busy

    @property
    def idle(self) -> set[int]:
        """Native ids of the threads that wait, and of those that run a loop which has nothing to do."""
        return self.waiters | self._pollers

    @property
    def is_any_waiting(self) -> bool:
        """Whether somebody waits for its turn."""
        return self._waiting > 0

    def started(self) -> None:
        """One more thread (or event loop, or call of a pool) is at work."""
        with self._condition:
            self._busy += 1
            self._tell()

    def ended(self) -> None:
        """One less; waits are looked at again."""
        with self._condition:
            self._busy -= 1
            self._tell()
            self._condition.notify_all()

    def join(self) -> None:
        """The calling thread counts from now on, if it can."""
        if counted.joins is self._gate and counted.gate is None:
            counted.gate = self._gate
            self.started()

    def _has_counted_caller(self) -> bool:
        if counted.gate is not None:
            return counted.gate is self._gate
        thread = threading.current_thread()
        return counted.joins in (None, self._gate) and not (thread.daemon or hasattr(thread, SERVICE))

    @contextmanager
    def sleeping(self) -> Iterator[None]:
        """A block in which the calling thread sleeps for a moment."""
        with self._condition:
            self.asleep += 1
        try:
            yield
        finally:
            with self._condition:
                self.asleep -= 1

    @contextmanager
    def polling(self) -> Iterator[None]:
        """A block in which the calling thread does nothing but look for what comes; it counts as before."""
        thread = threading.get_native_id()
        self._pollers.add(thread)
        try:
            yield
        finally:
            self._pollers.discard(thread)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A block in which the calling thread waits for its turn; the condition is held around it."""
        thread, count = threading.get_native_id(), int(self._has_counted_caller())
        self._waiting += count
        self.waiters.add(thread)
        if self.working <= 0:
            self._condition.notify_all()  # others wait for that
        try:
            yield
        finally:
            self.waiters.discard(thread)
            self._waiting -= count
            self._tell()

    @contextmanager
    def waiting_elsewhere(self) -> Iterator[Callable[[], None]]:
        """A block in which the calling thread waits for something else than its turn; the condition is not held.

        Gives what another thread may call when that has come: until it wakes up, it is not one that waits.
        """
        waiting = [threading.get_native_id()]
        if not self._has_counted_caller() or waiting[0] in self.waiters:  # a wait may be made of others
            yield nothing
            return

        def end() -> None:
            with self._condition:
                if waiting:
                    self.waiters.discard(waiting.pop())
                    self._blocked -= 1
                    self.told_at = time.monotonic()
                    self._tell()

        with self._condition:
            self._blocked += 1
            self.waiters.add(waiting[0])
            self._tell()
            self._condition.notify_all()
        try:
            yield end
        finally:
            with self._condition:
                if waiting:
                    self.waiters.discard(waiting[0])
                    self._blocked -= 1
                self._tell()
