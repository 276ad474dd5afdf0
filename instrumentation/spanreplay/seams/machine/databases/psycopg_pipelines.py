"""Pipelines of psycopg 3: statements are sent at once, and their results arrive when somebody asks for them.

A statement's call then has no result. What the agent asks of it later is a call of its own, and so is the point at
which all results must have arrived (`sync`, and the end of the block), where errors of the server are raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakSet

from spanreplay.model.call import Effect
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.patches import Patches
from spanreplay.seams.machine.databases.told_apart import mark
from spanreplay.seams.machine.databases.transactions import tell, tell_async
from spanreplay.seams.machine.effects import describe_effect

__all__ = ["LATER", "describe_arrival", "is_pipelined", "note_sent", "patch"]

LATER: Final = "later"
"""Member of a statement's result: that it arrives later."""
_SYNC: Final = "psycopg.sync"
_sent: Final[WeakSet[Any]] = WeakSet()
"""Connections on which a recorded statement was sent since the last sync."""


def is_pipelined(connection: Any) -> bool:
    """Whether a real connection is in pipeline mode."""
    return int(connection.info.pipeline_status) != 0


def note_sent(connection: Any) -> None:
    """Note that a statement was sent whose result arrives later."""
    _sent.add(connection)


def describe_arrival(name: str, connection: Any) -> FunctionCall:
    """Describe as a call what is asked of a result: its rows (`fetch`), or only what it is (`result`)."""
    found: FunctionCall = describe_effect(f"psycopg.{name}", mark(connection), Effect.READ)
    return found


def _sync(connection: Any, live: Callable[[], Any]) -> Any:
    if connection not in _sent:
        return live()
    _sent.discard(connection)
    return tell(connection, _SYNC, mark(connection), live)


async def _sync_async(connection: Any, live: Callable[[], Awaitable[Any]]) -> Any:
    if connection not in _sent:
        return await live()
    _sent.discard(connection)
    return await tell_async(connection, _SYNC, mark(connection), live)


class Block:
    """`with connection.pipeline()`; without psycopg's own block in a replay."""

    def __init__(self, connection: Any, kind: Any, real: Any) -> None:
        self._connection, self._kind, self._real = connection, kind, real

    def _stand_in(self) -> Any:
        made = object.__new__(self._kind)
        made._conn, made.level = self._connection, 1
        return made

    def __enter__(self) -> Any:
        return self._stand_in() if self._real is None else self._real.__enter__()

    def __exit__(self, *exc_info: Any) -> bool:
        real = self._real
        return bool(_sync(self._connection, lambda: real.__exit__(*exc_info) if real is not None else None))

    async def __aenter__(self) -> Any:
        return self._stand_in() if self._real is None else await self._real.__aenter__()

    async def __aexit__(self, *exc_info: Any) -> bool:
        async def live() -> Any:
            return await self._real.__aexit__(*exc_info) if self._real is not None else None

        return bool(await _sync_async(self._connection, live))


def patch(patches: Patches, connection_class: Any, pipeline_class: Any) -> None:
    """Patch how a connection's pipelines begin, end and are synchronised."""
    real = connection_class.pipeline
    real_sync = pipeline_class.sync

    def pipeline(self: Any) -> Block:
        """Return a block whose statements are sent without waiting for results."""
        stands_in = getattr(self, "_spanreplay_stand_in", None) is not None
        return Block(self, pipeline_class, None if stands_in else real(self))

    def sync(self: Any) -> Any:
        """Send what is pending, and process all results."""
        connection = self._conn
        stands_in = getattr(connection, "_spanreplay_stand_in", None) is not None
        return _sync(connection, lambda: None if stands_in else real_sync(self))

    async def sync_async(self: Any) -> Any:
        """Send what is pending, and process all results."""
        connection = self._conn

        async def live() -> None:
            if getattr(connection, "_spanreplay_stand_in", None) is None:
                await real_sync(self)

        return await _sync_async(connection, live)

    sync_async.__name__ = "sync"
    patches.replace(connection_class, "pipeline", pipeline)
    patches.replace(pipeline_class, "sync", sync_async if hasattr(pipeline_class, "__aenter__") else sync)
