"""Seam: aiosqlite, which runs `sqlite3` in its own thread: each statement belongs to the task that asks for it.

The statements themselves are recorded by the seam of `sqlite3`. Without this seam, statements that a tool makes on a
connection from outside the tool would be calls of the thread, and those of a request would belong to the thread or to
the request, depending on whether it found the connection in a pool.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

from spanreplay.runtime.lanes import thread_state
from spanreplay.runtime.patches import Patches


def _execute(wrapped: Any, connection: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(contextvars.copy_context().run, _for_its_task, *args, **kwargs)


def _for_its_task(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a statement in the lane of the task that asks, even if that task has started the thread."""
    before, thread_state.forced = thread_state.forced, None
    try:
        return function(*args, **kwargs)
    finally:
        thread_state.forced = before


def install(module: Any, patches: Patches) -> None:
    """Patch `aiosqlite.core`."""
    patches.wrap(module.Connection, "_execute", _execute)
