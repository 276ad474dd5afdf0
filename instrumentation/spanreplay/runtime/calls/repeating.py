"""Calls that a framework repeats: they are answered again where no unused answer is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from spanreplay.runtime.context_variables import reset_variable, set_variable

_is_repeating: ContextVar[bool] = ContextVar("spanreplay_repeating", default=False)


def is_repeating() -> bool:
    """Whether the running code takes steps again."""
    return _is_repeating.get()


@contextmanager
def repeating() -> Iterator[None]:
    """A block of which a call that has no unused answer is answered with one that was given before."""
    token = set_variable(_is_repeating, True)
    try:
        yield
    finally:
        reset_variable(_is_repeating, token)
