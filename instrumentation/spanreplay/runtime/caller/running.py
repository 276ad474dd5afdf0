"""Which run the calling code belongs to, where that is not the run of the process."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

__all__ = ["RUN", "is_off"]

RUN: Final[ContextVar[Any]] = ContextVar("spanreplay_run", default=None)
"""The run of the calling code; None where that is the run of the process, or none."""


def is_off() -> bool:
    """Whether the calling code works for a unit that is not recorded."""
    run = RUN.get()
    return run is not None and bool(run.is_off)
