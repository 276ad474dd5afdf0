"""Process-wide changes that several threads may use at once."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

__all__ = ["shared"]

Change = Callable[[], AbstractContextManager[None]]


def shared(change: Change) -> Change:
    """Wrap `change` so that the first of several threads enters it and the last one leaves it."""
    lock, stack, inside = threading.Lock(), ExitStack(), 0

    @contextmanager
    @functools.wraps(change)
    def run() -> Iterator[None]:
        nonlocal inside
        with lock:
            if inside == 0:
                stack.enter_context(change())
            inside += 1
        try:
            yield
        finally:
            with lock:
                inside -= 1
                if inside == 0:
                    stack.close()

    return run
