"""The exception that the interpreter was left with: it has printed it, and ends because of it."""

from __future__ import annotations

import sys

__all__ = ["find_last_error", "note_shown"]


class _State:
    shown: BaseException | None = None


def note_shown(error: BaseException | None) -> None:
    """A shell shows this one to a person and goes on, though the interpreter keeps it as its last."""
    _State.shown = error


def find_last_error() -> BaseException | None:
    """The exception that ends the process; None without one."""
    found = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return found if isinstance(found, BaseException) and found is not _State.shown else None
