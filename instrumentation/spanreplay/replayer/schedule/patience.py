"""How long a replay waits: for what should come next, and for threads that react to what came last."""

from __future__ import annotations

import contextlib
import posix  # the functions of os that a replay looks at work on the agent's files, at a price
import threading
import time
from collections.abc import Collection
from typing import Final

STALL_MS: Final = 500
"""How long a wait may last in which no completion goes out and no other thread works, before it is given up."""
STALL_BUSY_MS: Final = 2_000
"""The same while other threads work."""
STALL_AWAITED_MS: Final = 20_000
"""The same while another process is being started or has work, as long as nothing was given up."""
STALL_COMPUTING_MS: Final = 60_000
"""How long other threads may visibly compute in it, which is not part of the above."""
LOOK_MS: Final = 50
"""How often a thread that waits looks whether anything moves."""
REACTION_MS: Final = 200
"""How long other threads may go on, after a result went out, before the next one does; ends when all of them wait."""
REACTION_CPU_MS: Final = 1_000
"""How much longer they may, in CPU time, as long as they compute or wait for a processor."""
REACTION_LONG_MS: Final = 10_000
"""The same by the clock on the wall."""
REACTIONS_CPU_MS: Final = 20_000
"""The CPU time that all such waits of a process may last together: a thread that always computes reacts to nothing."""
QUICK_LOOK_MS: Final = 5
"""How often to look whether threads that count as at work do anything at all: nobody sees all that they wait for."""
_QUICK_QUIET_LOOKS: Final = 4
_QUICK_AT_WORK_MS: Final = 0.3
_LOOK_SHARE: Final = 20
"""A look takes no more of the time than one in so many parts."""
_QUIET_LOOKS: Final = 3
_AT_WORK_MS: Final = 2.0
"""The CPU time of other threads between two looks, above which they are at work."""
_LOOKING_MS: Final = 0.5
"""What each of those that wait may use for looks of its own within LOOK_MS, where threads have no clock of their own.
"""
_TASKS: Final = "/proc/self/task"
_CLOCK_OF_THREAD: Final = 6
"""CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED of Linux: with the complement of a thread's id, its CPU clock."""


class _Work:
    """What other threads do, but for those that wait: the CPU time that they use between two looks.

    The looks of those that wait take time as well, and so does a loop that looks for what comes: by the thread, not by
    the process, or they would take each other for work.
    """

    def __init__(self) -> None:
        self._clocks: dict[str, int] | None = None
        self._queued: dict[str, int] = {}
        self._is_new = True
        self._cpu_ms = _others_cpu_ms()
        self._since = time.monotonic()

    def look(self, waiting: Collection[int]) -> float:
        """CPU time in ms since the last look, 0 at the first: a look lets other threads have the interpreter.

        `waiting`: native ids of the threads that do not count.
        """
        before, self._clocks = self._clocks, _read_clocks()
        if self._is_new and self._clocks is not None:
            self._is_new = False
            return 0.0
        if before is None or self._clocks is None:
            return self._look_at_process(len(waiting))
        own = {str(each) for each in (threading.get_native_id(), *waiting)}
        return sum(ns - before.get(task, 0) for task, ns in self._clocks.items() if task not in own) / 1e6

    def look_at_queue(self, waiting: Collection[int]) -> float:
        """Time in ms that they waited for a processor since the last such look, the longest of any; 0 if unknown."""
        before, self._queued = self._queued, _read_queued()
        own = {str(each) for each in (threading.get_native_id(), *waiting)}
        waits = (ns - before[task] for task, ns in self._queued.items() if task in before and task not in own)
        return max(waits, default=0) / 1e6

    def _look_at_process(self, count: int) -> float:
        now, cpu_ms = time.monotonic(), _others_cpu_ms()
        used_ms = cpu_ms - self._cpu_ms - _LOOKING_MS * count * (now - self._since) * 1000 / LOOK_MS
        self._cpu_ms, self._since = cpu_ms, now
        return max(0.0, used_ms)


class Patience:
    """Tells when nothing has moved for so long that nothing will.

    Looks count, not time alone: on a busy machine a process may not run at all for a while, which says nothing.
    """

    def __init__(self, state: object, look_ms: float = LOOK_MS) -> None:
        self._state = state
        self._since = time.monotonic()
        self._looks = 0
        self._look_ms = look_ms
        self._work = _Work()
        self._next = self._since
        self._computed_ms = 0.0

    def is_over(self, state: object, *, is_busy: bool, is_awaited: bool = False, waiting: Collection[int] = ()) -> bool:
        """Whether the state has been the same for too long; `is_busy` while other threads work.

        `is_awaited`: another process has still to come or to answer, which may take long on a busy machine.
        `waiting`: native ids of the threads that wait as this one does.
        """
        self._looks += 1
        now = time.monotonic()
        if state != self._state:
            self._state, self._since, self._looks, self._computed_ms, self._next = state, now, 0, 0.0, now
        elif is_busy and now >= self._next and self._computed_ms < STALL_COMPUTING_MS:
            self._next = now + self._look_ms / 1000  # who is woken up more often need not look each time
            used_ms = self._work.look(waiting)
            if used_ms > _AT_WORK_MS:
                self._computed_ms += used_ms
                self._since, self._looks = now, 0
        limit_ms = STALL_AWAITED_MS if is_awaited else STALL_BUSY_MS if is_busy else STALL_MS
        return self._looks * self._look_ms >= limit_ms and (time.monotonic() - self._since) * 1000 >= limit_ms


# ── Threads that react ──────────────────────────────────────────────────────────────────────────────
class _Spent:
    cpu_ms = 0.0


_spent: Final = _Spent()


def _others_cpu_ms() -> float:
    return (time.process_time() - time.thread_time()) * 1000


def _read_clocks() -> dict[str, int] | None:
    """Task → CPU time in ns, of every thread of this process; None where that is unknown."""
    clocks = {}
    try:
        for task in posix.listdir(_TASKS):
            with contextlib.suppress(OSError):  # it has ended
                clocks[task] = time.clock_gettime_ns((~int(task) << 3) | _CLOCK_OF_THREAD)
    except OSError:
        return None
    return clocks or None


def _read_queued() -> dict[str, int]:
    """Task → time in ns that each thread of this process has waited for a processor; empty where that is unknown."""
    queued = {}
    with contextlib.suppress(OSError):
        for task in posix.listdir(_TASKS):
            with contextlib.suppress(OSError, IndexError, ValueError):  # it has ended; a kernel that does not count
                descriptor = posix.open(f"{_TASKS}/{task}/schedstat", posix.O_RDONLY)
                try:
                    queued[task] = int(posix.read(descriptor, 128).split()[1])
                finally:
                    posix.close(descriptor)
    return queued


def _is_any_runnable(waiting: Collection[int]) -> bool | None:
    """Whether a thread but for these and this one runs, or waits for a processor or a disk; None if that is unknown."""
    own = {str(each) for each in (threading.get_native_id(), *waiting)}
    try:
        tasks = posix.listdir(_TASKS)
    except OSError:
        return None
    for task in tasks:
        if task not in own:
            try:
                descriptor = posix.open(f"{_TASKS}/{task}/stat", posix.O_RDONLY)
                try:
                    state = posix.read(descriptor, 512).rpartition(b")")[2][:2]
                finally:
                    posix.close(descriptor)
            except OSError:  # it has ended, perhaps between the two
                continue
            if state in (b" R", b" D"):
                return True
    return False


class Reaction:
    """Tells when threads that are at work have had the time to react to what went out last.

    By time at first; then for as long as they visibly compute, or would if a busy machine let them, within limits. What
    waits in a way that nobody sees uses no processor: with `is_quick` they have had it once none of them did for some
    looks, between which every thread could get the interpreter. `is_patient`: what would go on otherwise is a deadline,
    so they may compute as long as in a wait for a turn.
    """

    def __init__(
        self,
        others_s: float = REACTION_MS / 1000,
        since: float | None = None,
        *,
        is_quick: bool = False,
        is_patient: bool = False,
    ) -> None:
        self.since = time.monotonic() if since is None else since
        self._due = self.since + others_s
        self._is_short = others_s * 1000 < REACTION_MS
        self._work = _Work()
        self._used_ms = 0.0
        self._next = self.since
        self._quiet = 0
        self._is_quick = is_quick
        self._is_patient = is_patient
        self.look_s = (QUICK_LOOK_MS if is_quick else LOOK_MS) / 1000
        """How long to wait until the next look."""

    def is_over(self, waiting: Collection[int] = ()) -> bool:
        """Whether the next result may go out although others work; `waiting`: native ids of those that do not."""
        now = time.monotonic()
        if now >= self._next:
            self._look(now, waiting)
        if self._is_quick and self._quiet >= _QUICK_QUIET_LOOKS:
            return True
        if now < self._due:
            return False
        if self._is_patient:
            return self._quiet >= _QUIET_LOOKS or (now - self.since) * 1000 >= STALL_COMPUTING_MS
        is_over = (
            self._is_short
            or self._quiet >= _QUIET_LOOKS
            or self._used_ms >= REACTION_CPU_MS
            or _spent.cpu_ms >= REACTIONS_CPU_MS
            or (now - self.since) * 1000 >= REACTION_LONG_MS
        )
        if is_over and not self._is_short:
            _spent.cpu_ms += self._used_ms
        return is_over

    def _look(self, now: float, waiting: Collection[int]) -> None:
        used_ms, is_any = self._work.look(waiting), _is_any_runnable(waiting)
        self._used_ms += used_ms
        is_at_work = used_ms > (_QUICK_AT_WORK_MS if self._is_quick else _AT_WORK_MS) or is_any
        if self._is_quick:
            # Of a thread that came to a processor just now, to find the interpreter taken again by who looks
            is_at_work = self._work.look_at_queue(waiting) > _QUICK_AT_WORK_MS or is_at_work
        self._quiet = 0 if is_at_work else self._quiet + 1
        if self._is_quick:
            self._is_quick = is_any is not None and now < self._due
            self.look_s = max(QUICK_LOOK_MS / 1000, (time.monotonic() - now) * _LOOK_SHARE)
            if not self._is_quick:
                self._quiet, self.look_s = 0, LOOK_MS / 1000
        self._next = now + self.look_s
