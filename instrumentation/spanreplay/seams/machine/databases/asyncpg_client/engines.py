"""SQLAlchemy's engines on asyncpg: what they ask a server only once, or only of a connection that was kept.

An engine asks its first connection about the server. That is one call, of the run that opens the connection; any other
run that uses the engine records it again without asking, because its replay starts with an engine that knows nothing.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, Final
from weakref import WeakKeyDictionary

from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import call_sync
from spanreplay.runtime.patches import Patches
from spanreplay.seams.machine.databases.asyncpg_client.answers import ask_sync, describe, is_first

__all__ = ["patch_dialect"]

_PLAIN: Final = frozenset({type(None), bool, int, float, str})
_learned: Final[WeakKeyDictionary[Any, dict[str, Any]]] = WeakKeyDictionary()
"""Dialect → what it has learned of its server."""
_told: Final[WeakKeyDictionary[Any, set[Any]]] = WeakKeyDictionary()
"""Run → the dialects of which it has recorded that."""


def _is_plain(value: Any) -> bool:
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


def _describe() -> Any:
    return describe("initialize", {}, Effect.READ)


def _initialize(real: Any) -> Any:
    @wraps(real)
    def initialize(self: Any, connection: Any) -> None:
        run = recorded_run()

        def live() -> dict[str, Any]:
            before = dict(vars(self))
            real(self, connection)
            if run is not None:  # SQLAlchemy does so afterwards, where it has begun a transaction
                self.do_rollback(connection.connection)
            found = {name: value for name, value in vars(self).items() if before.get(name, before) is not value}
            return {name: value for name, value in found.items() if _is_plain(value)}

        if run is None:
            live()
            return
        is_first(_told, run, id(self))
        _learned[self] = call_sync(_describe, live)
        vars(self).update(_learned[self])

    return initialize


def _begin(real: Any) -> Any:
    @wraps(real)
    def do_begin(self: Any, dbapi_connection: Any) -> Any:
        run, learned = recorded_run(), _learned.get(self)
        if run is not None and learned is not None and is_first(_told, run, id(self)):
            call_sync(_describe, lambda: learned)
        return real(self, dbapi_connection)

    return do_begin


def _ping(real: Any) -> Any:
    @wraps(real)
    def do_ping(self: Any, dbapi_connection: Any) -> bool:
        connection = dbapi_connection._connection
        ask_sync(connection, lambda: describe("ping", {}), lambda: real(self, dbapi_connection))
        return True

    return do_ping


def patch_dialect(module: Any, patches: Patches) -> None:
    """Patch `sqlalchemy.dialects.postgresql.asyncpg`."""
    cls = module.PGDialect_asyncpg
    for name, make in (("initialize", _initialize), ("do_begin", _begin), ("do_ping", _ping)):
        patches.replace(cls, name, make(getattr(cls, name)))
