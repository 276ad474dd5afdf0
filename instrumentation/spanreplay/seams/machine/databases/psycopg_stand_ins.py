"""Stand-ins for psycopg 3 connections that a replay never makes; each answers as an idle connection does."""

from __future__ import annotations

from typing import Any
from weakref import ref

from spanreplay.seams.machine.databases.postgres import note_unrecorded
from spanreplay.seams.machine.databases.psycopg_kept import parameter_status, server_version
from spanreplay.seams.machine.databases.transactions import IDLE, MODES, UNKNOWN, methods


class _Connection:
    """Common base of both stand-ins; precedes psycopg's own class in the MRO, whose `__init__` is never run."""

    is_async = False
    prepare_threshold: int | None = 5
    prepared_max: int | None = 100
    info: Any = None

    def set_up(
        self, factory: Any, cursor_factory: Any, autocommit: bool, parameters: dict[str, Any], context: Any = None
    ) -> None:
        """Set up an idle connection; `cursor_factory` is a class of our cursors, `context` has the adapters."""
        from psycopg import adapters
        from psycopg.adapt import AdaptersMap
        from psycopg.rows import tuple_row

        self.row_factory = factory or tuple_row
        self.cursor_factory = cursor_factory
        self._autocommit = autocommit
        self._isolation_level = self._read_only = self._deferrable = None
        self._adapters = AdaptersMap(adapters if context is None else context.adapters)
        self._is_closed = False
        self._notice_handlers: list[Any] = []
        self._notify_handlers: list[Any] = []
        self.info = _Information(self, parameters)
        self.pgconn = _LibpqConnection(self)

    def _spanreplay_stand_in(self, what: str) -> Exception:
        from psycopg import OperationalError

        return OperationalError(f"this connection is replayed: {what} can't run live on it")

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    @property
    def broken(self) -> bool:
        """Always False."""
        return False

    def __del__(self) -> None:
        """Do nothing: nothing is open."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} [replayed]>"

    def cursor(self, name: str = "", *, binary: bool = False, row_factory: Any = None, **options: Any) -> Any:
        """Return a cursor that serves the recorded results."""
        if name:
            note_unrecorded("a cursor of the server")
            raise self._spanreplay_stand_in("a cursor of the server")
        return self.cursor_factory(self, row_factory=row_factory or self.row_factory)


class _Information:
    """The `connection.info` of a connection that was never made."""

    def __init__(self, connection: Any, parameters: dict[str, Any]) -> None:
        self._connection = ref(connection)
        self.dbname = str(parameters.get("dbname") or "")
        self.user = str(parameters.get("user") or "")
        self.host = str(parameters.get("host") or "")
        self.port = int(parameters.get("port") or 5432)
        self.encoding = "utf-8"
        self.backend_pid = 0
        self.transaction_status = 0
        self.status = 0

    @property
    def server_version(self) -> int:
        """The version of the recorded server."""
        return server_version(self._connection())

    def parameter_status(self, param_name: str) -> str | None:
        """Return a setting of the recorded server."""
        return parameter_status(self._connection(), param_name)


class _LibpqConnection:
    """What psycopg and a pool ask of libpq's connection, which was never made."""

    pipeline_status = status = 0

    def __init__(self, connection: _Connection) -> None:
        self._connection = ref(connection)

    @property
    def transaction_status(self) -> int:
        """The transaction state of the open connection."""
        connection = self._connection()
        return UNKNOWN if connection is None or connection.closed else int(connection.info.transaction_status)

    def finish(self) -> None:
        """Close the connection."""
        connection = self._connection()
        if connection is not None:
            connection._is_closed = True


class ReplayedConnection(_Connection):
    """Precedes `psycopg.Connection` in the MRO."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """Run one statement with a new cursor."""
        return self.cursor().execute(query, params)


class ReplayedAsyncConnection(_Connection):
    """Precedes `psycopg.AsyncConnection` in the MRO."""

    is_async = True

    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """Run one statement with a new cursor."""
        return await self.cursor().execute(query, params)


def _mode(name: str) -> property:
    """Return a property for one transaction mode; setting it calls `set_…`."""
    return property(lambda self: vars(self)[f"_{name}"], lambda self, value: getattr(self, f"set_{name}")(value))


def _real(name: str, is_async: bool) -> Any:
    """Return the innermost method of a connection that was never made: it stores modes and transaction status."""
    if name == "transaction":
        return None

    def keep(self: Any, *args: Any) -> None:
        if name.startswith("set_"):
            vars(self)[f"_{name.removeprefix('set_')}"] = args[0]
        else:
            self.info.transaction_status = IDLE

    async def keep_async(self: Any, *args: Any) -> None:
        keep(self, *args)

    return keep_async if is_async else keep


def _keeping(name: str, told: Any, is_async: bool) -> Any:
    """Return a method that is recorded and whose effect on the connection is stored."""
    keep = _real(name, False)

    def sync(self: Any, *args: Any) -> None:
        told(self, *args)
        keep(self, *args)

    async def asynchronous(self: Any, *args: Any) -> None:
        await told(self, *args)
        keep(self, *args)

    return asynchronous if is_async else sync


for _cls, _is_async in ((ReplayedConnection, False), (ReplayedAsyncConnection, True)):
    for _name, _method in methods(lambda name, a=_is_async: _real(name, a), is_async=_is_async).items():  # type: ignore[misc]  # a default of a lambda
        setattr(_cls, _name, _method if _name == "transaction" else _keeping(_name, _method, _is_async))
    for _name in MODES:
        setattr(_cls, _name, _mode(_name))


def make(cls: Any, cursor_factory: Any, conninfo: str, options: dict[str, Any]) -> Any:
    """Make a connection of class `cls`, which has one of our classes first; connects to no server."""
    from psycopg.conninfo import conninfo_to_dict

    made: Any = object.__new__(cls)
    named = {k: v for k, v in options.items() if k in ("dbname", "user", "host", "port")}
    parameters = {**conninfo_to_dict(conninfo), **named}
    is_autocommit, context = bool(options.get("autocommit")), options.get("context")
    made.set_up(options.get("row_factory"), cursor_factory, is_autocommit, dict(parameters), context)
    return made
