"""Thread census: the threads of a replaying process that work, and those that wait.

The main thread, the agent's other threads and pool calls work until they end, except while they wait for their turn or
for each other. Daemon threads that a library starts don't count until they wait for their turn: what else they wait for
is unknown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spanreplay.runtime.order.counted import SERVICE, counted, nothing
from spanreplay.runtime.order.loops import running_loop


class ThreadCensus:
    """Counts under the condition of an order gate; `tell` is called with it held, at least when a thread goes to work.

    `gate`: the gate that owns this census. Threads counted for another gate, whose replay has ended, never count here.
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
        """Native ids of the threads that wait."""
        self._pollers: set[int] = set()
        self.asleep = 0
        """The number of working threads that sleep for a moment and continue by themselves."""
        self.told_at = 0.0
        """When a thread was last told what it waited for, on the monotonic clock; see `note_told`."""

    @property
    def working(self) -> int:
        """The number of threads at work, including the calling one."""
        return self._busy - self._waiting - self._blocked

    @property
    def size(self) -> int:
        """The number of counted threads, working or waiting."""
        return self._busy

    @property
    def idle(self) -> set[int]:
        """Native ids of the threads that wait, and of those that run an idle loop."""
        return self.waiters | self._pollers

    @property
    def is_any_waiting(self) -> bool:
        """Whether any thread waits for its turn."""
        return self._waiting > 0

    def started(self) -> None:
        """Count one more thread (or event loop, or pool call) at work."""
        with self._condition:
            self._busy += 1
            self._tell()

    def ended(self) -> None:
        """Count one fewer; every wait checks again."""
        with self._condition:
            self._busy -= 1
            self._tell()
            self._condition.notify_all()

    def join(self) -> None:
        """Count the calling thread from now on, if possible."""
        if counted.joins is self._gate and counted.gate is None:
            counted.gate = self._gate
            self.started()

    def _has_counted_caller(self) -> bool:
        if counted.gate is not None:
            return counted.gate is self._gate
        thread = threading.current_thread()
        return counted.joins in (None, self._gate) and not (thread.daemon or hasattr(thread, SERVICE))

    def note_told(self) -> None:
        """Note that the calling thread tells another one something, which may then react; hold the condition.

        What a thread does because time has passed is not a reaction: a loop with sleeps would react forever.
        """
        if not counted.is_timed:
            self.told_at = time.monotonic()

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
            counted.is_timed = running_loop() is None  # a loop's own thread runs for many

    @contextmanager
    def polling(self) -> Iterator[None]:
        """A block in which the calling thread only polls for events; it counts as before."""
        thread = threading.get_native_id()
        self._pollers.add(thread)
        try:
            yield
        finally:
            self._pollers.discard(thread)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A block in which the calling thread waits for its turn; the caller holds the condition."""
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
        """A block in which the calling thread waits for something other than its turn; the condition is not held.

        Yields a callback for another thread to call when the wait is over: from then on, the waiting thread counts as
        working, even before it wakes up.
        """
        waiting, is_timed = [threading.get_native_id()], [False]
        if not self._has_counted_caller() or waiting[0] in self.waiters:  # a wait may consist of nested waits
            yield nothing
            return

        def end() -> None:
            with self._condition:
                if waiting:
                    self.waiters.discard(waiting.pop())
                    self._blocked -= 1
                    is_timed[0] = counted.is_timed
                    self.note_told()
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
            counted.is_timed = is_timed[0]
