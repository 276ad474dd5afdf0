"""Connections of psycopg 3 that were never made: in a replay, each has the answers of an idle one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from spanreplay.local.postgres import SERVER_VERSION


class _Connection:
    """What both kinds of stand-in have in common; goes before psycopg's own class, whose `__init__` never ran."""

    is_async = False
    prepare_threshold: int | None = 5
    prepared_max: int | None = 100
    info: Any = None

    def set_up(self, factory: Any, cursor_factory: Any, autocommit: bool, parameters: dict[str, Any]) -> None:
        """Be an idle connection; `cursor_factory` is a class of our cursors."""
        from psycopg import adapters
        from psycopg.adapt import AdaptersMap
        from psycopg.rows import tuple_row

        self.row_factory = factory or tuple_row
        self.cursor_factory = cursor_factory
        self._autocommit = autocommit
        self._adapters = AdaptersMap(adapters)
        self._is_closed = False
        self._notice_handlers: list[Any] = []
        self._notify_handlers: list[Any] = []
        self.info = _Information(parameters)

    def _spanreplay_stand_in(self, what: str) -> Exception:
        from psycopg import OperationalError

        return OperationalError(f"this connection is replayed: {what} can't run live on it")

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    @property
    def broken(self) -> bool:
        """Never."""
        return False

    @property
    def autocommit(self) -> bool:
        """As it was asked for."""
        return self._autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        self._autocommit = value

    def __del__(self) -> None:
        """Nothing is open."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} [replayed]>"

    def cursor(self, name: str = "", *, binary: bool = False, row_factory: Any = None, **options: Any) -> Any:
        """A cursor that serves what is recorded."""
        if name:
            raise self._spanreplay_stand_in("a cursor of the server")
        return self.cursor_factory(self, row_factory=row_factory or self.row_factory)


class _Information:
    """What `connection.info` tells of a connection that was never made."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.dbname = str(parameters.get("dbname") or "")
        self.user = str(parameters.get("user") or "")
        self.host = str(parameters.get("host") or "")
        self.port = int(parameters.get("port") or 5432)
        self.server_version = SERVER_VERSION
        self.encoding = "utf-8"
        self.backend_pid = 0
        self.transaction_status = 0
        self.status = 0


class ReplayedConnection(_Connection):
    """Goes before `psycopg.Connection`."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """Run one statement with a cursor of its own."""
        return self.cursor().execute(query, params)

    def commit(self) -> None:
        """Nothing waits."""

    def rollback(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """End it."""
        self._is_closed = True

    @contextmanager
    def transaction(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """A block without a server; `psycopg.Rollback` ends it as it would."""
        from psycopg import Rollback

        try:
            yield self
        except Rollback:
            return

    @contextmanager
    def pipeline(self) -> Iterator[Any]:
        """A block without a server."""
        yield self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class ReplayedAsyncConnection(_Connection):
    """Goes before `psycopg.AsyncConnection`."""

    is_async = True

    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """Run one statement with a cursor of its own."""
        return await self.cursor().execute(query, params)

    async def commit(self) -> None:
        """Nothing waits."""

    async def rollback(self) -> None:
        """Nothing waits."""

    async def close(self) -> None:
        """End it."""
        self._is_closed = True

    async def set_autocommit(self, value: bool) -> None:
        """As it is asked for."""
        self._autocommit = value

    @asynccontextmanager
    async def transaction(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """A block without a server; `psycopg.Rollback` ends it as it would."""
        from psycopg import Rollback

        try:
            yield self
        except Rollback:
            return

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


def make(cls: Any, cursor_factory: Any, conninfo: str, options: dict[str, Any]) -> Any:
    """A connection of the class `cls`, which has one of ours first; nobody is dialled."""
    from psycopg.conninfo import conninfo_to_dict

    made: Any = object.__new__(cls)
    named = {k: v for k, v in options.items() if k in ("dbname", "user", "host", "port")}
    parameters = {**conninfo_to_dict(conninfo), **named}
    made.set_up(options.get("row_factory"), cursor_factory, bool(options.get("autocommit")), dict(parameters))
    return made
