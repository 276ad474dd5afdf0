"""Calls that a framework repeats: they are answered again where no unused answer is left."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from spanreplay.runtime.context_variables import holding

_is_repeating: ContextVar[bool] = ContextVar("spanreplay_repeating", default=False)


def is_repeating() -> bool:
    """Whether the running code takes steps again."""
    return _is_repeating.get()


def repeating() -> AbstractContextManager[None]:
    """A block of which a call that has no unused answer is answered with one that was given before."""
    return holding(_is_repeating, True)
