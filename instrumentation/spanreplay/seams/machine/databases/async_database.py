"""Seam: aiosqlite, which runs `sqlite3` in a thread of its own: each statement is one of the task that asks for it.

The statements themselves are recorded by the seam of `sqlite3`. Without this one, those that a tool makes on a
connection from outside of it would be calls of the thread, and those of a request would be the thread's or the
request's own, by whether it found the connection in a pool.
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
    """Run a statement in the lane of the task that asks, also where that task has started the thread."""
    before, thread_state.forced = thread_state.forced, None
    try:
        return function(*args, **kwargs)
    finally:
        thread_state.forced = before


def install(module: Any, patches: Patches) -> None:
    """Patch `aiosqlite.core`."""
    patches.wrap(module.Connection, "_execute", _execute)
