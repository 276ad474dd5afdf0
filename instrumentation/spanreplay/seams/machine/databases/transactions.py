"""Common parts of the psycopg seams besides statements: connections and transactions as calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

from spanreplay.seams.machine.databases.psycopg_kept import call_async_on, call_on
from spanreplay.seams.machine.databases.told_apart import mark
from spanreplay.seams.machine.effects import describe_effect, effects_run

MODES: Final = ("autocommit", "isolation_level", "read_only", "deferrable")
"""Transaction settings of a psycopg 3 connection, each with a method `set_…`."""
IDLE, IN_TRANSACTION, IN_ERROR, UNKNOWN = 0, 2, 3, 4
"""psycopg's transaction states; the last one is that of a closed connection."""
_TWO_PHASES: Final = ("tpc_begin", "tpc_prepare", "tpc_commit", "tpc_rollback")


def complete(exc: BaseException) -> None:
    """Set the attributes that `diag` reads: a recorded error has no libpq result."""
    if not hasattr(exc, "_info"):
        vars(exc).update(_info=None, _encoding="utf-8", pgconn=None)


def tell(connection: Any, name: str, arguments: Mapping[str, Any], live: Callable[[], Any]) -> Any:
    """Make a database operation without rows a call, if effects are calls here. Returns `live`'s result or None."""
    if effects_run() is None:
        return live()
    given: list[Any] = []
    try:
        call_on(connection, lambda: describe_effect(name, arguments), lambda: given.append(live()))
    except Exception as exc:
        complete(exc)
        raise
    return given[0] if given else None


async def tell_async(
    connection: Any, name: str, arguments: Mapping[str, Any], live: Callable[[], Awaitable[Any]]
) -> Any:
    """As `tell`, on an event loop."""
    if effects_run() is None:
        return await live()
    given: list[Any] = []

    async def run_live() -> None:
        given.append(await live())

    try:
        await call_async_on(connection, lambda: describe_effect(name, arguments), run_live)
    except Exception as exc:
        complete(exc)
        raise
    return given[0] if given else None


class Block:
    """`with connection.transaction()`: its beginning is a call, and so is its end, which commits or rolls back."""

    def __init__(self, connection: Any, name: str | None, force_rollback: bool, real: Any) -> None:
        """`real` is the driver's own block; None in a replay."""
        self._real = real
        self._before = IDLE if real is not None else connection.info.transaction_status
        self._arguments = {"savepoint": name, "force_rollback": force_rollback, **mark(connection)}
        self._shown = SimpleNamespace(connection=connection, savepoint_name=name, force_rollback=force_rollback)

    def _note(self, status: int) -> None:
        """Store the transaction state of a connection that was never made."""
        if self._real is None:
            self._shown.connection.info.transaction_status = status

    def _how(self, kind: Any) -> str:
        return f"psycopg.{'commit' if kind is None and not self._shown.force_rollback else 'rollback'}"

    def _is_swallowed(self, exc: Any) -> bool:
        from psycopg import Rollback

        return isinstance(exc, Rollback) and exc.transaction in (None, self._shown)

    def __enter__(self) -> Any:
        made = tell(
            self._shown.connection,
            "psycopg.begin",
            self._arguments,
            lambda: self._real.__enter__() if self._real else None,
        )
        self._note(IN_TRANSACTION)
        return made or self._shown

    def __exit__(self, kind: Any, value: Any, trace: Any) -> bool:
        real = self._real
        given = tell(
            self._shown.connection,
            self._how(kind),
            self._arguments,
            lambda: real.__exit__(kind, value, trace) if real else None,
        )
        self._note(self._before)
        return bool(given) if real else self._is_swallowed(value)

    async def __aenter__(self) -> Any:
        async def live() -> Any:
            return await self._real.__aenter__() if self._real else None

        made = await tell_async(self._shown.connection, "psycopg.begin", self._arguments, live)
        self._note(IN_TRANSACTION)
        return made or self._shown

    async def __aexit__(self, kind: Any, value: Any, trace: Any) -> bool:
        async def live() -> Any:
            return await self._real.__aexit__(kind, value, trace) if self._real else None

        given = await tell_async(self._shown.connection, self._how(kind), self._arguments, live)
        self._note(self._before)
        return bool(given) if self._real else self._is_swallowed(value)


def _value(value: Any) -> Any:
    return getattr(value, "name", value)


def _ordinary(name: str) -> tuple[str, Callable[[tuple[Any, ...]], dict[str, Any]]]:
    if name.startswith("set_"):
        return "psycopg.set", lambda args: {name.removeprefix("set_"): _value(args[0])}
    return f"psycopg.{name}", lambda args: {"id": str(args[0])} if args else {}


TOLD: Final = ("commit", "rollback", *(f"set_{each}" for each in MODES), *_TWO_PHASES)
"""Methods of a connection that affect its transactions."""


def methods(real_of: Callable[[str], Any], *, is_async: bool) -> dict[str, Any]:
    """Return name → method for a connection class; `real_of(name)` is the method beneath, None in a replay."""
    found: dict[str, Any] = {}
    for name in TOLD:
        real = real_of(name)
        call, describe = _ordinary(name)

        def sync(self: Any, *args: Any, real: Any = real, call: str = call, describe: Any = describe) -> Any:
            return tell(self, call, {**describe(args), **mark(self)}, lambda: real(self, *args))

        async def asynchronous(
            self: Any, *args: Any, real: Any = real, call: str = call, describe: Any = describe
        ) -> Any:
            return await tell_async(self, call, {**describe(args), **mark(self)}, lambda: real(self, *args))

        made = asynchronous if is_async else sync
        made.__name__, made.__doc__ = name, getattr(real, "__doc__", None)
        found[name] = made
    real_block = real_of("transaction")

    def transaction(self: Any, savepoint_name: str | None = None, force_rollback: bool = False) -> Block:
        real = None if real_block is None else real_block(self, savepoint_name, force_rollback)
        return Block(self, savepoint_name, force_rollback, real)

    found["transaction"] = transaction
    return found
