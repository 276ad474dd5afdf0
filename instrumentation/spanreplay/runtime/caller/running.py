"""Which run the calling code belongs to, where that is not the run of the process."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

__all__ = ["RUN"]

RUN: Final[ContextVar[Any]] = ContextVar("spanreplay_run", default=None)
"""The run of the calling code; None where that is the run of the process, or none."""
