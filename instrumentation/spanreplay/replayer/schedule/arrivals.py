"""The progress of processes that are being started: on a busy machine, starting may take long."""

from __future__ import annotations

import contextlib
import posix  # during a replay, functions of os act on the agent's files, and are slow
import time
from typing import TYPE_CHECKING, Final

from spanreplay.replayer.schedule.stall_detector import STALL_COMPUTING_MS

if TYPE_CHECKING:
    from spanreplay.runtime.processes import ProcessGroup

STEP_MS: Final = 5_000
"""How much CPU time, including waits for a CPU, a process must spend to count as one step further."""
_LOOK_S: Final = 0.2


class Arrivals:
    """Counts the steps of all processes of a run that are being started, each up to a limit; not thread-safe."""

    def __init__(self, process_group: ProcessGroup) -> None:
        self._process_group = process_group
        self._next = 0.0
        self._steps = 0

    def count_steps(self) -> int:
        """Return the count of the last look, a moment ago at most; 0 if the system doesn't tell."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOOK_S
            spent = (min(_read_spent_ms(pid), STALL_COMPUTING_MS) for pid in self._process_group.find_starting())
            self._steps = sum(ms // STEP_MS for ms in spent)
        return self._steps


def _read_spent_ms(pid: int) -> int:
    """The CPU time of a process, plus its waits for a CPU; 0 once it has ended, or if unknown."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        descriptor = posix.open(f"/proc/{pid}/schedstat", posix.O_RDONLY)
        try:
            used, queued = posix.read(descriptor, 128).split()[:2]
        finally:
            posix.close(descriptor)
        return (int(used) + int(queued)) // 1_000_000
    return 0
