"""Stall detector: how long a replay waits for the next event, and for threads that react to the last one."""

from __future__ import annotations

import contextlib
import posix  # during a replay, functions of os act on the agent's files, and are slow
import threading
import time
from collections.abc import Collection
from typing import Final

STALL_MS: Final = 500
"""How long a wait may last without a completion and without working threads, before it is given up."""
STALL_BUSY_MS: Final = 2_000
"""The same while other threads work."""
STALL_AWAITED_MS: Final = 20_000
"""The same while another process is being started or has work, as long as no completion was skipped."""
STALL_COMPUTING_MS: Final = 60_000
"""How long other threads may visibly compute during such a wait, in addition to the limits above."""
LOOK_MS: Final = 50
"""How often a waiting thread checks whether anything moves."""
REACTION_MS: Final = 200
"""How long other threads may continue after a result went out, before the next one does; ends when all of them wait."""
REACTION_CPU_MS: Final = 1_000
"""How much longer they may continue, in CPU time, as long as they compute or wait for a CPU."""
REACTION_LONG_MS: Final = 10_000
"""The same in wall-clock time."""
REACTIONS_CPU_MS: Final = 20_000
"""The CPU time that all such waits of a process may last together: a thread that always computes reacts to nothing."""
QUICK_LOOK_MS: Final = 5
"""How often to check whether threads counted as working do anything at all: not all of their waits are visible."""
_QUICK_QUIET_LOOKS: Final = 4
_QUICK_AT_WORK_MS: Final = 0.3
_LOOK_SHARE: Final = 20
"""A look takes at most one part in this many of the time."""
_QUIET_LOOKS: Final = 3
_AT_WORK_MS: Final = 2.0
"""If other threads use more CPU time than this between two looks, they are at work."""
_LOOKING_MS: Final = 0.5
"""The CPU time that each waiting thread may use for looks within LOOK_MS, if threads have no clock of their own."""
HANG_MS: Final = 5_000
"""How long nothing may move, while every thread waits for another, before the program counts as stuck."""
HANG_DAEMONS_MS: Final = 60_000
"""The same if there are daemon threads: whether they work is unknown."""
_TASKS: Final = "/proc/self/task"
_CLOCK_OF_THREAD: Final = 6
"""Linux's CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED; with the complement of a thread id, that thread's CPU clock."""


def hang_ms() -> int:
    """How long the main thread may wait before the program counts as stuck, in ms."""
    return HANG_DAEMONS_MS if any(t.daemon and not _is_go_between(t) for t in threading.enumerate()) else HANG_MS


def _is_go_between(thread: threading.Thread) -> bool:
    """Whether a thread only passes items between a pool or queue and its processes; it works only when they do."""
    return str(getattr(getattr(thread, "_target", None), "__module__", "")).startswith("multiprocessing.")


class _Work:
    """Measures the work of other threads, except those that wait: the CPU time that they use between two looks.

    The looks of waiting threads take CPU time as well, and so does a polling loop. Hence the time is measured per
    thread, not per process; otherwise they would take each other for work.
    """

    def __init__(self) -> None:
        self._clocks: dict[str, int] | None = None
        self._queued: dict[str, int] = {}
        self._is_new = True
        self._cpu_ms = _others_cpu_ms()
        self._since = time.monotonic()

    def look(self, waiting: Collection[int]) -> float:
        """Return the CPU time since the last look in ms; 0 at the first, as a look lets other threads run.

        `waiting`: native ids of the threads that don't count.
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
        """Return the longest time in ms that any of them waited for a CPU since the last such look; 0 if unknown."""
        before, self._queued = self._queued, _read_queued()
        own = {str(each) for each in (threading.get_native_id(), *waiting)}
        waits = (ns - before[task] for task, ns in self._queued.items() if task in before and task not in own)
        return max(waits, default=0) / 1e6

    def _look_at_process(self, count: int) -> float:
        now, cpu_ms = time.monotonic(), _others_cpu_ms()
        used_ms = cpu_ms - self._cpu_ms - _LOOKING_MS * count * (now - self._since) * 1000 / LOOK_MS
        self._cpu_ms, self._since = cpu_ms, now
        return max(0.0, used_ms)


class StallDetector:
    """Tells when nothing has moved for so long that nothing will.

    Requires a number of looks, not time alone: on a busy machine a process may not run at all for a while, which proves
    nothing.
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

        `is_awaited`: another process is still to start or to answer, which may take long on a busy machine.
        `waiting`: native ids of the threads that also wait.
        """
        self._looks += 1
        now = time.monotonic()
        if state != self._state:
            self._state, self._since, self._looks, self._computed_ms, self._next = state, now, 0, 0.0, now
        elif is_busy and now >= self._next and self._computed_ms < STALL_COMPUTING_MS:
            self._next = now + self._look_ms / 1000  # a thread woken more often need not look each time
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
    """Map each thread of this process to its CPU time in ns; None if unknown."""
    clocks = {}
    try:
        for task in posix.listdir(_TASKS):
            with contextlib.suppress(OSError):  # it has ended
                clocks[task] = time.clock_gettime_ns((~int(task) << 3) | _CLOCK_OF_THREAD)
    except OSError:
        return None
    return clocks or None


def _read_queued() -> dict[str, int]:
    """Map each thread of this process to the time in ns that it has waited for a CPU; empty if unknown."""
    queued = {}
    with contextlib.suppress(OSError):
        for task in posix.listdir(_TASKS):
            with contextlib.suppress(OSError, IndexError, ValueError):  # it has ended, or the kernel doesn't count
                descriptor = posix.open(f"{_TASKS}/{task}/schedstat", posix.O_RDONLY)
                try:
                    queued[task] = int(posix.read(descriptor, 128).split()[1])
                finally:
                    posix.close(descriptor)
    return queued


def _is_any_runnable(waiting: Collection[int]) -> bool | None:
    """Whether any thread except these and the calling one runs, or waits for a CPU or a disk; None if unknown."""
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
            except OSError:  # it has ended, perhaps between the two calls
                continue
            if state in (b" R", b" D"):
                return True
    return False


class Reaction:
    """Tells when working threads have had the time to react to the last result.

    They get a fixed time first, then as long as they visibly compute, or would if a busy machine let them, within
    limits. A thread whose wait is invisible uses no CPU. With `is_quick`, the reaction is over once no thread has used
    any for several looks, between which every thread could get the interpreter. With `is_patient`, the alternative is a
    deadline, so threads may compute as long as in a wait for a turn.
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
        """Whether the next result may go out although others work; `waiting`: native ids of those that don't."""
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
            # Count threads that got a CPU but are still waiting for the GIL
            is_at_work = self._work.look_at_queue(waiting) > _QUICK_AT_WORK_MS or is_at_work
        self._quiet = 0 if is_at_work else self._quiet + 1
        if self._is_quick:
            self._is_quick = is_any is not None and now < self._due
            self.look_s = max(QUICK_LOOK_MS / 1000, (time.monotonic() - now) * _LOOK_SHARE)
            if not self._is_quick:
                self._quiet, self.look_s = 0, LOOK_MS / 1000
        self._next = now + self.look_s
