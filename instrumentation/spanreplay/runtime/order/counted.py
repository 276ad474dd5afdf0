"""Threads that count in a replay."""

from __future__ import annotations

import threading
from typing import Final


class _Counted(threading.local):
    is_here = False
    """Whether what the calling thread does was announced by `Crew.started`."""
    may_join = False
    """Whether it will say so when it ends, and may so be counted from now on."""


counted: Final = _Counted()


def nothing() -> None:
    """For whom there is nothing to do."""


SERVICE: Final = "_spanreplay_service"
"""Attribute of a thread that works for many; what it does is counted piece by piece."""
