"""Seam: aiosqlite, which runs `sqlite3` in a thread of its own: each statement is one of the task that asks for it.

The statements themselves are recorded by the seam of `sqlite3`. Without this one, those that a tool makes on a
connection from outside of it would be calls of the thread.
"""

from __future__ import annotations

import contextvars
from typing import Any

from spanreplay.runtime.patches import Patches


def _execute(wrapped: Any, connection: Any, args: Any, kwargs: Any) -> Any:
    function, *rest = args
    return wrapped(contextvars.copy_context().run, function, *rest, **kwargs)


def install(module: Any, patches: Patches) -> None:
    """Patch `aiosqlite.core`."""
    patches.wrap(module.Connection, "_execute", _execute)
