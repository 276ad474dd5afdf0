"""How long a replay waits for what should come next, before the program counts as another one."""

from __future__ import annotations

import time
from typing import Final

STALL_MS: Final = 500
"""How long a wait may last in which no completion goes out and no other thread works, before it is given up."""
STALL_BUSY_MS: Final = 2_000
"""The same while other threads work."""
STALL_AWAITED_MS: Final = 20_000
"""The same while another process is being started or has work, as long as nothing was given up."""
LOOK_MS: Final = 50
"""How often a thread that waits looks whether anything moves."""


class Patience:
    """Tells when nothing has moved for so long that nothing will.

    Looks count, not time alone: on a busy machine a process may not run at all for a while, which says nothing.
    """

    def __init__(self, state: object, look_ms: float = LOOK_MS) -> None:
        self._state = state
        self._since = time.monotonic()
        self._looks = 0
        self._look_ms = look_ms

    def is_over(self, state: object, *, is_busy: bool, is_awaited: bool = False) -> bool:
        """Whether the state has been the same for too long; `is_busy` while other threads work.

        `is_awaited`: another process has still to come or to answer, which may take long on a busy machine.
        """
        self._looks += 1
        if state != self._state:
            self._state, self._since, self._looks = state, time.monotonic(), 0
        limit_ms = STALL_AWAITED_MS if is_awaited else STALL_BUSY_MS if is_busy else STALL_MS
        return self._looks * self._look_ms >= limit_ms and (time.monotonic() - self._since) * 1000 >= limit_ms
