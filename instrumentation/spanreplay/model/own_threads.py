"""Threads that spanreplay starts for itself: they are no lanes of a run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


class _Starting(threading.local):
    is_unnumbered = False


STARTING: Final = _Starting()
"""Whether the calling thread starts threads that take no lane number."""


@contextmanager
def unnumbered_threads() -> Iterator[None]:
    """A block whose new threads work for many: they are no lanes."""
    before, STARTING.is_unnumbered = STARTING.is_unnumbered, True
    try:
        yield
    finally:
        STARTING.is_unnumbered = before
