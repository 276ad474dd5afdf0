"""Lookups of a server's types by psycopg 3, which bypass a connection's own cursors."""

from __future__ import annotations

from typing import Any, Final

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.noted_effects import SET_UPS
from spanreplay.seams.machine.databases.psycopg_kept import call_async_on, call_on

__all__ = ["patch"]

_TYPE_FIELDS: Final = ("name", "oid", "array_oid", "regtype", "delimiter")


def patch(patches: Patches, cls: Any) -> None:
    """Patch the lookup of a server type, which bypasses the connection's own cursors."""
    real = vars(cls)["fetch"]

    def show(found: Any) -> dict[str, Any] | None:
        return None if found is None else {field: getattr(found, field) for field in _TYPE_FIELDS}

    async def fetch_async(conn: Any, describe: Any, ask: Any) -> Any:
        async def live() -> dict[str, Any] | None:
            return show(await ask())

        value = await call_async_on(conn, describe, live)
        return None if value is None else cls(**value)

    def fetch(kind: Any, /, conn: Any, name: Any) -> Any:
        def ask() -> Any:
            return real.__get__(None, kind)(conn, name)

        def describe() -> FunctionCall:
            shown = {"name": name if isinstance(name, str) else str(name.as_string(None))}
            return FunctionCall(Kind.TOOL.value, "psycopg.TypeInfo.fetch", Effect.READ.value, shown)

        run = recorded_run()
        is_async = getattr(conn, "is_async", hasattr(conn, "__aenter__"))
        if kind is not cls or run is None or (is_async and not run.resolver.has(SET_UPS)):
            return ask()
        if is_async:
            return fetch_async(conn, describe, ask)
        value = call_on(conn, describe, lambda: show(ask()))
        return None if value is None else cls(**value)

    patches.replace(cls, "fetch", classmethod(fetch))
