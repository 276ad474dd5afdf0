"""Calls that a framework repeats: if no unused answer is left, they are given an earlier answer again."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from spanreplay.runtime.context_variables import holding

_is_repeating: ContextVar[bool] = ContextVar("spanreplay_repeating", default=False)


def is_repeating() -> bool:
    """Whether the running code repeats steps."""
    return _is_repeating.get()


def repeating() -> AbstractContextManager[None]:
    """A block in which a call without an unused answer is given an earlier answer again."""
    return holding(_is_repeating, True)
