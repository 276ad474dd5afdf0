"""How far processes are that are on their way: on a busy machine one may take long until it is here."""

from __future__ import annotations

import contextlib
import posix  # the functions of os that a replay looks at work on the agent's files, at a price
import time
from typing import TYPE_CHECKING, Final

from spanreplay.replayer.schedule.patience import STALL_COMPUTING_MS

if TYPE_CHECKING:
    from spanreplay.runtime.processes import Family

STEP_MS: Final = 5_000
"""How much of the processors a process has to use, or to wait for, to count as further on its way than before."""
_LOOK_S: Final = 0.2


class Arrivals:
    """Counts the steps of all processes of a run that are on their way, each up to a limit; not safe across threads."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._next = 0.0
        self._steps = 0

    def count_steps(self) -> int:
        """The count at the last look, which is a moment ago at most; 0 where the system does not tell."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOOK_S
            spent = (min(_read_spent_ms(pid), STALL_COMPUTING_MS) for pid in self._family.find_starting())
            self._steps = sum(ms // STEP_MS for ms in spent)
        return self._steps


def _read_spent_ms(pid: int) -> int:
    """What a process has used of the processors and waited for them; 0 once it has ended, or if that is unknown."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        descriptor = posix.open(f"/proc/{pid}/schedstat", posix.O_RDONLY)
        try:
            used, queued = posix.read(descriptor, 128).split()[:2]
        finally:
            posix.close(descriptor)
        return (int(used) + int(queued)) // 1_000_000
    return 0
