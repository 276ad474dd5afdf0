"""The exception that the interpreter has printed and that ends the process."""

from __future__ import annotations

import sys

__all__ = ["find_last_error", "note_shown"]


class _State:
    shown: BaseException | None = None


def note_shown(error: BaseException | None) -> None:
    """Note an exception that a shell shows to a person before going on, though the interpreter keeps it as its last."""
    _State.shown = error


def find_last_error() -> BaseException | None:
    """The exception that ends the process; None without one."""
    found = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return found if isinstance(found, BaseException) and found is not _State.shown else None
