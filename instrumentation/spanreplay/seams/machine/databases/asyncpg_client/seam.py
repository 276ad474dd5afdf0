"""Seam: asyncpg as the agent's code, its pools and SQLAlchemy use it.

Each statement is a call, and so is opening a connection; in a replay connections are stand-ins. Above them, asyncpg's
own code runs: its pools, transactions, proxies and prepared statements.
"""

from __future__ import annotations

from functools import wraps
from importlib import import_module
from typing import Any, Final

from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import call_async
from spanreplay.runtime.patches import Patches
from spanreplay.seams.machine.databases.asyncpg_client import stand_ins
from spanreplay.seams.machine.databases.asyncpg_client.answers import ask, describe
from spanreplay.seams.machine.databases.asyncpg_client.engines import patch_dialect
from spanreplay.seams.machine.databases.asyncpg_client.statements import (
    patch_connection,
    patch_cursors,
    patch_prepared,
    read_settings,
)
from spanreplay.seams.machine.databases.postgres import is_replayed_here
from spanreplay.seams.machine.databases.told_apart import note_made

_OWN: Final = ("asyncpg/connection.py", "asyncpg/connect_utils.py")
"""Files between a program that connects and the function that is patched; a pool's is none of them."""


def _learn(connection: Any) -> dict[str, Any]:
    """Return what a connection knows of its server, as far as asyncpg's own code asks for it."""
    parameters, address = connection._params, connection._addr
    return {
        "settings": read_settings(connection._protocol.get_settings()),
        "address": list(address) if isinstance(address, tuple) else address,
        "user": parameters.user,
        "database": parameters.database,
    }


def _connecting(real: Any) -> Any:
    @wraps(real)
    async def connect(*, loop: Any, connection_class: Any, record_class: Any, **options: Any) -> Any:
        made: list[Any] = []
        told: dict[str, Any] = {}

        async def live() -> dict[str, Any]:
            made.append(await real(loop=loop, connection_class=connection_class, record_class=record_class, **options))
            return _learn(made[0])

        settings = options.get("server_settings")
        if recorded_run() is not None:
            shown = {"server_settings": dict(settings)} if settings else {}
            told = await call_async(lambda: describe("connect", shown), live) or {}
        elif not is_replayed_here():
            await live()
        connection = made[0] if made else stand_ins.make_connection(connection_class, record_class, loop, options, told)
        return note_made(connection, "asyncpg", _OWN)

    return connect


def _init_of_pool(real: Any) -> Any:
    """Let a pool's function for new connections be one call: the load decides when there are new connections."""

    @wraps(real)
    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807 -- the name of what it replaces
        prepare = options.get("init")
        if prepare is not None:

            async def init(connection: Any) -> None:
                async def live() -> None:
                    await prepare(connection)

                await ask(connection, lambda: describe("init", {}), live)

            options["init"] = init
        real(self, *args, **options)

    return __init__


def install(module: Any, patches: Patches) -> None:
    """Patch how `asyncpg` makes connections, and record what is asked on them; or patch SQLAlchemy's dialect for it."""
    if module.__name__ != "asyncpg":
        patch_dialect(module, patches)
        return
    utils = import_module("asyncpg.connect_utils")
    for name in ("_connect", "_connect_addr"):  # pools before 0.30 use the second for all but their first connection
        patches.replace(utils, name, _connecting(getattr(utils, name)))
    patches.replace(module.pool.Pool, "__init__", _init_of_pool(module.pool.Pool.__init__))
    patch_connection(patches, module.connection.Connection)
    patch_prepared(patches, import_module("asyncpg.prepared_stmt").PreparedStatement)
    patch_cursors(patches, import_module("asyncpg.cursor"))
