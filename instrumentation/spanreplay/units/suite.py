"""Replays each unit of a suite in a fork of the process that started the application.

Each fork is independent: it has its own loop, files and sandbox, and sends its verdict through a pipe. A fork that
crashes, exits or hangs doesn't affect the others. Only the forking thread survives in the child, so a process with
other threads is not divided, unless they are idle pool threads.
"""

from __future__ import annotations

import json
import os
import posix  # for functions that a replay doesn't patch
import select
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from spanreplay.model import guard
from spanreplay.runtime.order.loops import running_loop
from spanreplay.units import idle_threads, loop_fork

__all__ = ["APART", "Apart", "Forks"]

APART: Final = "apart"
"""Member of a report: why a unit, or every unit, needs its own process."""

_OURS: Final = "spanreplay-"
"""Name prefix of threads that are restarted in a forked process."""
_CHUNK_BYTES: Final = 1 << 16
VERDICT_BYTES_MAX: Final = 64 * 1024 * 1024
"""A fork that sends more is killed, because its verdict is held in memory."""
_LOOK_MS: Final = 5
"""Poll interval for the exit of a process that has sent its verdict."""
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIGNALLED: Final = 128
_FAILED: Final = 1


class Apart(Exception):
    """A unit can't be replayed in a fork; the message says why."""


class _TooLong(Exception):
    """A fork has sent more than the maximum size of a verdict."""

    def __str__(self) -> str:
        return f"the verdict of this unit has more than {VERDICT_BYTES_MAX >> 20} MiB"


@dataclass
class _Fork:
    """A forked process that replays one unit."""

    unit: str
    pid: int
    pipe: int
    began: float
    is_late: bool = False
    told: bytearray = field(default_factory=bytearray)


class Forks:
    """The forks of one process, one per unit."""

    def __init__(
        self,
        units: Sequence[str],
        jobs: int,
        timeout_s: float,
        become: Callable[[str, Callable[[str], object]], None],
        tell: Callable[[Mapping[str, Any]], None],
        clean: Callable[[int], None],
    ) -> None:
        """`become` turns a fork into the replay of a unit; its second argument sends the verdict.

        `tell` receives the result of each unit; `clean` removes what the process with the given id left behind.
        """
        self._left = deque(units)
        self._jobs, self._timeout_s = jobs, timeout_s
        self._become, self._tell, self._clean = become, tell, clean
        self._working: dict[int, _Fork] = {}
        self._kept: idle_threads.Kept = []
        """The `threading.local` values of threads from the start."""

    def find_obstacle(self) -> str:
        """Return why this process can't be divided; empty if it can."""
        here = threading.current_thread()
        others = [t for t in threading.enumerate() if t is not here and not t.name.startswith(_OURS)]
        busy = idle_threads.await_idle(others)
        if busy:
            return f"its start leaves a thread running ({busy[0].name}), which no fork would have"
        return loop_fork.find_obstacle()

    def divide(self) -> bool:
        """Replay all units; returns True at once in each fork, and False in this process when all are done."""
        loop = running_loop()
        self._kept = idle_threads.find_kept()
        for stream in (sys.stdout, sys.stderr):
            guard.guarded("standard output", stream.flush)
        with self._ended_by_signals():
            while self._left or self._working:
                while self._left and len(self._working) < self._jobs:
                    if self._fork(self._left.popleft(), loop):
                        return True
                self._look()
        return False

    @contextmanager
    def _ended_by_signals(self) -> Iterator[None]:
        """A block in which signals that end this process kill its forks; forks restore the application's handlers."""
        before = {number: signal.signal(number, self._end) for number in _ENDING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end(self, number: int, frame: object) -> NoReturn:
        for fork in self._working.values():
            posix.kill(fork.pid, signal.SIGKILL)
        posix._exit(_SIGNALLED + number)

    def _fork(self, unit: str, loop: Any) -> bool:
        reading, writing = posix.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads known to be idle, or native
            pid = posix.fork()
        if pid:
            posix.close(writing)
            self._working[reading] = _Fork(unit, pid, reading, time.monotonic())
            return False
        for pipe in (reading, *self._working):
            posix.close(pipe)
        self._working.clear()

        def send(verdict: str) -> None:
            content = memoryview(verdict.encode())
            while content:
                content = content[posix.write(writing, content) :]

        try:
            loop_fork.renew(loop)
            idle_threads.forget()
            lost = idle_threads.find_lost(self._kept)
            if lost:
                raise Apart(f"a thread of a pool keeps something for itself ({lost}), which no fork has")
            self._become(unit, send)
        except BaseException as exc:  # noqa: BLE001 -- fail closed, whatever it is
            send(_describe_failure(exc))
            posix._exit(_FAILED)
        return True

    def _look(self) -> None:
        """Wait until a fork sends output, ends, or times out."""
        poll = select.poll()
        for pipe in self._working:
            poll.register(pipe, select.POLLIN)
        first = min(fork.began for fork in self._working.values()) + self._timeout_s
        for pipe, _ in poll.poll(max(0.0, first - time.monotonic()) * 1000):
            fork = self._working[pipe]
            chunk = posix.read(pipe, _CHUNK_BYTES)
            fork.told += chunk
            if len(fork.told) > VERDICT_BYTES_MAX:
                posix.kill(fork.pid, signal.SIGKILL)
                fork.told[:] = _describe_failure(_TooLong()).encode()
                self._settle(fork)
            elif not chunk:
                self._settle(fork)
        now = time.monotonic()
        for fork in [each for each in self._working.values() if now - each.began >= self._timeout_s]:
            self._settle(fork)

    def _settle(self, fork: _Fork) -> None:
        """Reap a fork that closed its pipe or timed out, and report its result."""
        ended, status = posix.waitpid(fork.pid, posix.WNOHANG)
        while not ended:
            if time.monotonic() - fork.began >= self._timeout_s:
                fork.is_late = True
                posix.kill(fork.pid, signal.SIGKILL)
                ended, status = posix.waitpid(fork.pid, 0)
            else:
                select.poll().poll(_LOOK_MS)
                ended, status = posix.waitpid(fork.pid, posix.WNOHANG)
        posix.close(fork.pipe)
        del self._working[fork.pipe]
        self._clean(fork.pid)
        self._tell(
            {
                "unit": fork.unit,
                "status": os.waitstatus_to_exitcode(status),
                "is_late": fork.is_late,
                "verdict": fork.told.decode("utf-8", "replace"),
                "duration_ms": int((time.monotonic() - fork.began) * 1000),
            }
        )


def _describe_failure(exc: BaseException) -> str:
    if isinstance(exc, Apart):
        return json.dumps({APART: str(exc)})
    failed = {"schema": "divergence/1", "verdict": "error", "error": str(exc), "hint": getattr(exc, "hint", "")}
    return json.dumps(failed)
