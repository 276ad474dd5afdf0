"""Seam: psycopg 3, sync and async, as the agent's code uses it outside tools.

Cursors are of our subclass. In a replay, each connection is a stand-in that was never connected: its cursors serve the
recorded results, and everything else is answered as an idle connection would.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any, Final

from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import call_async, call_sync
from spanreplay.runtime.patches import Patches
from spanreplay.seams.machine.databases import psycopg_pipelines, psycopg_stand_ins, psycopg_types
from spanreplay.seams.machine.databases.postgres import (
    Column,
    Served,
    build_value,
    describe_statement,
    is_replayed_here,
    note_unrecorded,
)
from spanreplay.seams.machine.databases.psycopg_kept import Opening, call_async_on, call_on
from spanreplay.seams.machine.databases.transactions import IDLE, IN_ERROR, complete, methods
from spanreplay.seams.machine.effects import effects_run

_STATUS: Final = "transaction"
_classes: Final[dict[tuple[type, type], type]] = {}


def _text(query: Any) -> str:
    if isinstance(query, bytes):
        return query.decode("utf-8", "replace")
    return str(query.as_string(None)) if hasattr(query, "as_string") else str(query)


class _Cursor:
    """Common base of both cursors; precedes psycopg's own class in the MRO."""

    _served: Served | None = None
    _stand_in: Any = None
    _is_due = False
    """Whether its statement's result arrives later: it was sent in a pipeline."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        connection = args[0] if args else kwargs["connection"]
        self._stand_in = getattr(connection, "_spanreplay_stand_in", None)
        if self._stand_in is None:
            super().__init__(*args, **kwargs)
            return
        self._shown: Any = connection
        self._factory = kwargs.get("row_factory") or connection.row_factory
        self.arraysize, self._is_closed = 1, False

    def __del__(self) -> None:
        if self._stand_in is None:
            parent = getattr(super(), "__del__", None)
            if parent is not None:
                parent()

    def _serve(self, value: dict[str, Any]) -> None:
        self._served = Served(value)
        self.pgresult = self._served
        if value.get(psycopg_pipelines.LATER):
            self._note_later()
        if self._stand_in is not None:
            self._shown.info.transaction_status = value.get(_STATUS, IDLE)

    def _describe(self, name: str, query: Any, parameters: Any) -> Any:
        return describe_statement(f"psycopg.{name}", _text(query), parameters, self.connection)

    def _collected(self, rows: list[Any]) -> dict[str, Any]:
        cursor: Any = super()
        description = cursor.description
        columns = None if description is None else [[c.name, c.type_code] for c in description]
        value = build_value(rows, columns, cursor.rowcount, cursor.statusmessage or "")
        return {**value, _STATUS: int(cursor.connection.info.transaction_status)}

    def _note_later(self) -> dict[str, Any]:
        """Return the value of a statement whose result arrives later."""
        connection = self.connection
        self._is_due = True
        psycopg_pipelines.note_sent(connection)
        status = int(connection.info.transaction_status)
        return {**build_value([], None, -1, ""), _STATUS: status, psycopg_pipelines.LATER: True}

    def _ask(self) -> None:
        """Make a call of what a result is that has perhaps arrived; its rows are another one."""
        if not self._is_due or (recorded_run() is None and self._stand_in is None):
            return
        value = call_sync(
            lambda: psycopg_pipelines.describe_arrival("result", self.connection), lambda: self._collected([])
        )
        if self._stand_in is not None:
            self._serve(value)

    def _fail(self, exc: Exception) -> None:
        """Note that a statement has raised."""
        complete(exc)
        if self._stand_in is not None and not self._shown.autocommit:
            self._shown.info.transaction_status = IN_ERROR

    def _next(self) -> Any:
        served = self._served
        row = None if served is None else served.take()
        return None if row is None else self._factory(self)(row)

    # ── What the agent reads ────────────────────────────────────────────────────────────────────────
    @property
    def _encoding(self) -> str:
        return "utf-8" if self._stand_in is not None else super()._encoding  # type: ignore[misc]  # of the class that this is mixed into

    @property
    def description(self) -> Any:
        """The columns of the result."""
        self._ask()
        if self._stand_in is None:
            return super().description  # type: ignore[misc]  # as above
        columns = None if self._served is None else self._served.columns
        return None if columns is None else [Column(*column) for column in columns]

    @property
    def rowcount(self) -> int:
        """The number of rows that the statement returned or changed."""
        self._ask()
        if self._stand_in is None:
            return super().rowcount  # type: ignore[misc,no-any-return]  # as above
        return -1 if self._served is None else self._served.rowcount

    @property
    def rownumber(self) -> int | None:
        """The number of rows read so far."""
        self._ask()
        if self._stand_in is None:
            return super().rownumber  # type: ignore[misc,no-any-return]  # as above
        return None if self._served is None else self._served.taken

    @property
    def statusmessage(self) -> str | None:
        """The server's status message for the statement."""
        self._ask()
        if self._stand_in is None:
            return super().statusmessage  # type: ignore[misc,no-any-return]  # as above
        return None if self._served is None else self._served.statusmessage

    @property
    def connection(self) -> Any:
        """The connection."""
        return self._shown if self._stand_in is not None else super().connection  # type: ignore[misc]  # as above

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed if self._stand_in is not None else super().closed  # type: ignore[misc]  # as above

    @property
    def row_factory(self) -> Any:
        """The factory that makes rows."""
        return self._factory if self._stand_in is not None else super().row_factory  # type: ignore[misc]  # as above

    @row_factory.setter
    def row_factory(self, factory: Any) -> None:
        if self._stand_in is not None:
            self._factory = factory
        else:
            theirs: Any = next(c for c in type(self).__mro__ if "row_factory" in vars(c) and c is not _Cursor)
            theirs.row_factory.fset(self, factory)

    def nextset(self) -> bool | None:
        """Return None in a replay: only the first result is recorded."""
        found = None if self._stand_in is not None else super().nextset()  # type: ignore[misc]  # as above
        if found:
            note_unrecorded("a further result of a statement")
        return found

    def copy(self, *args: Any, **options: Any) -> Any:
        """Copy rows in the server's own format; not recorded."""
        note_unrecorded("COPY")
        return super().copy(*args, **options)  # type: ignore[misc]  # as above

    def stream(self, *args: Any, **options: Any) -> Any:
        """Stream rows one by one; not recorded."""
        note_unrecorded("a stream of rows")
        return super().stream(*args, **options)  # type: ignore[misc]  # as above

    def _rows_tuples(self) -> Any:
        """Set a row factory that makes tuples, and return the previous one."""
        from psycopg.rows import tuple_row

        factory, self.row_factory = self.row_factory, tuple_row
        return factory


class CursorMixin(_Cursor):
    """Precedes `psycopg.Cursor` in the MRO."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """Run one statement."""
        return self._run("execute", query, params, lambda: super(CursorMixin, self).execute(query, params, **options))  # type: ignore[misc]  # of the class that this is mixed into

    def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
        """Run one statement with each of the parameters."""
        listed = list(params_seq)
        self._run("executemany", query, listed, lambda: super(CursorMixin, self).executemany(query, listed, **options))  # type: ignore[misc]  # as above

    def _run(self, name: str, query: Any, parameters: Any, live: Any) -> Any:
        self._is_due = False
        if recorded_run() is None and self._stand_in is None:
            return live()
        is_served = True

        def run_live() -> dict[str, Any]:
            nonlocal is_served
            is_served = False
            if self._stand_in is not None:
                raise self._stand_in(name)
            live()
            if psycopg_pipelines.is_pipelined(self.connection):
                return self._note_later()
            if super(_Cursor, self).description is None:  # type: ignore[misc]  # as above
                return self._collected([])
            return self._take_rows()

        try:
            value = call_on(self.connection, lambda: self._describe(name, query, parameters), run_live)
        except Exception as exc:
            self._fail(exc)
            raise
        if is_served:
            self._serve(value)
        return self

    def _take_rows(self) -> dict[str, Any]:
        """Fetch all rows, as tuples, and leave them to the agent."""
        factory = self._rows_tuples()
        try:
            rows = super().fetchall()  # type: ignore[misc]  # as above
        finally:
            self.row_factory = factory
        if rows:
            super().scroll(0, mode="absolute")  # type: ignore[misc]  # as above
        return self._collected(rows)

    def _arrive(self) -> None:
        """Make a call of the rows that were not there yet when their statement was sent."""
        if not self._is_due or (recorded_run() is None and self._stand_in is None):
            return

        def run_live() -> dict[str, Any]:
            if self._stand_in is not None:
                raise self._stand_in("fetch")
            return self._take_rows()

        try:
            value = call_sync(lambda: psycopg_pipelines.describe_arrival("fetch", self.connection), run_live)
        except Exception as exc:
            self._fail(exc)
            raise
        self._is_due = False
        if self._stand_in is not None:
            self._serve(value)

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        self._arrive()
        return self._next() if self._stand_in is not None else super().fetchone()  # type: ignore[misc]  # as above

    def fetchmany(self, size: int = 0) -> Any:
        """Return the next rows."""
        self._arrive()
        if self._stand_in is None:
            return super().fetchmany(size)  # type: ignore[misc]  # as above
        return [row for _, row in zip(range(size or self.arraysize), iter(self._next, None), strict=False)]

    def fetchall(self) -> Any:
        """Return all remaining rows."""
        self._arrive()
        return list(iter(self._next, None)) if self._stand_in is not None else super().fetchall()  # type: ignore[misc]  # as above

    def __iter__(self) -> Any:
        self._arrive()
        return iter(self._next, None) if self._stand_in is not None else super().__iter__()  # type: ignore[misc]  # as above

    def close(self) -> None:
        """Close the cursor."""
        if self._stand_in is None:
            super().close()  # type: ignore[misc]  # as above
        self._is_closed = True


class AsyncCursorMixin(_Cursor):
    """Precedes `psycopg.AsyncCursor` in the MRO."""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """Run one statement."""
        return await self._run(
            "execute", query, params, lambda: super(AsyncCursorMixin, self).execute(query, params, **options)  # type: ignore[misc]  # as above
        )  # fmt: skip

    async def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
        """Run one statement with each of the parameters."""
        listed = list(params_seq)
        await self._run(
            "executemany", query, listed, lambda: super(AsyncCursorMixin, self).executemany(query, listed, **options)  # type: ignore[misc]  # as above
        )  # fmt: skip

    async def _run(self, name: str, query: Any, parameters: Any, live: Any) -> Any:
        self._is_due = False
        if recorded_run() is None and self._stand_in is None:
            return await live()
        is_served = True

        async def run_live() -> dict[str, Any]:
            nonlocal is_served
            is_served = False
            if self._stand_in is not None:
                raise self._stand_in(name)
            await live()
            if psycopg_pipelines.is_pipelined(self.connection):
                return self._note_later()
            if super(_Cursor, self).description is None:  # type: ignore[misc]  # as above
                return self._collected([])
            return await self._take_rows()

        try:
            value = await call_async_on(self.connection, lambda: self._describe(name, query, parameters), run_live)
        except Exception as exc:
            self._fail(exc)
            raise
        if is_served:
            self._serve(value)
        return self

    async def _take_rows(self) -> dict[str, Any]:
        """Fetch all rows, as tuples, and leave them to the agent."""
        factory = self._rows_tuples()
        try:
            rows = await super().fetchall()  # type: ignore[misc]  # as above
        finally:
            self.row_factory = factory
        if rows:
            await super().scroll(0, mode="absolute")  # type: ignore[misc]  # as above
        return self._collected(rows)

    async def _arrive(self) -> None:
        """Make a call of the rows that were not there yet when their statement was sent."""
        if not self._is_due or (recorded_run() is None and self._stand_in is None):
            return

        async def run_live() -> dict[str, Any]:
            if self._stand_in is not None:
                raise self._stand_in("fetch")
            return await self._take_rows()

        try:
            value = await call_async(lambda: psycopg_pipelines.describe_arrival("fetch", self.connection), run_live)
        except Exception as exc:
            self._fail(exc)
            raise
        self._is_due = False
        if self._stand_in is not None:
            self._serve(value)

    async def fetchone(self) -> Any:
        """Return the next row, or None."""
        await self._arrive()
        return self._next() if self._stand_in is not None else await super().fetchone()  # type: ignore[misc]  # as above

    async def fetchmany(self, size: int = 0) -> Any:
        """Return the next rows."""
        await self._arrive()
        if self._stand_in is None:
            return await super().fetchmany(size)  # type: ignore[misc]  # as above
        return [row for _, row in zip(range(size or self.arraysize), iter(self._next, None), strict=False)]

    async def fetchall(self) -> Any:
        """Return all remaining rows."""
        await self._arrive()
        return list(iter(self._next, None)) if self._stand_in is not None else await super().fetchall()  # type: ignore[misc]  # as above

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (row := await self.fetchone()) is not None:
            yield row

    async def close(self) -> None:
        """Close the cursor."""
        if self._stand_in is None:
            await super().close()  # type: ignore[misc]  # as above
        self._is_closed = True


def _with(mixin: type, base: type) -> type:
    if issubclass(base, mixin):
        return base
    made = _classes.get((mixin, base))
    if made is None:
        made = _classes[(mixin, base)] = type(base.__name__, (mixin, base), {"__module__": base.__module__})
    return made


def _begin(conninfo: str, options: dict[str, Any]) -> Opening:
    from psycopg.conninfo import conninfo_to_dict

    modes = {"autocommit": bool(options.get("autocommit"))}
    return Opening("psycopg", lambda: {**conninfo_to_dict(conninfo), **options}, modes)


def _patch_transactions(patches: Patches, cls: Any, *, is_async: bool) -> None:
    for name, made in methods(lambda name: getattr(cls, name, None), is_async=is_async).items():
        if hasattr(cls, name):
            patches.replace(cls, name, made)


def _note_server_cursor(wrapped: Any, cursor: Any, args: Any, kwargs: Any) -> Any:
    note_unrecorded("a cursor of the server")
    return wrapped(*args, **kwargs)


def install(module: Any, patches: Patches) -> None:
    """Patch how `psycopg` makes connections, and record what is done on them."""
    psycopg_types.patch(patches, import_module("psycopg.types").TypeInfo)
    for name in ("ServerCursor", "AsyncServerCursor"):
        patches.wrap(getattr(module, name), "execute", _note_server_cursor)
    sync, asynchronous = module.Connection, module.AsyncConnection
    real, real_async = vars(sync)["connect"], vars(asynchronous)["connect"]
    _patch_transactions(patches, sync, is_async=False)
    _patch_transactions(patches, asynchronous, is_async=True)
    psycopg_pipelines.patch(patches, sync, module.Pipeline)
    psycopg_pipelines.patch(patches, asynchronous, module.AsyncPipeline)

    def connect(cls: Any, /, conninfo: str = "", **options: Any) -> Any:
        opening, answer = _begin(conninfo, options), None
        if is_replayed_here():
            if effects_run() is not None:
                answer = call_sync(opening.describe, opening.answer)
            cursors = _with(CursorMixin, options.get("cursor_factory") or module.Cursor)
            stand_in = _with(psycopg_stand_ins.ReplayedConnection, cls)
            return opening.note(psycopg_stand_ins.make(stand_in, cursors, conninfo, options), answer)
        made: list[Any] = []

        def live() -> Any:
            made.append(real.__get__(None, cls)(conninfo, **options))
            return opening.answer(made[0])

        answer = live() if effects_run() is None else call_sync(opening.describe, live)
        made[0].cursor_factory = _with(CursorMixin, made[0].cursor_factory)
        return opening.note(made[0], answer)

    def connect_async(cls: Any, /, conninfo: str = "", **options: Any) -> Any:
        return open_async(cls, _begin(conninfo, options), conninfo, options)  # begun where the caller is on the stack

    async def open_async(cls: Any, opening: Opening, conninfo: str, options: dict[str, Any]) -> Any:
        made: list[Any] = []

        async def live() -> Any:
            if is_replayed_here():
                return opening.answer()
            made.append(await real_async.__get__(None, cls)(conninfo, **options))
            return opening.answer(made[0])

        is_replayed = is_replayed_here()
        answer = await (live() if effects_run() is None else call_async(opening.describe, live))
        if is_replayed:
            cursors = _with(AsyncCursorMixin, options.get("cursor_factory") or module.AsyncCursor)
            stand_in = _with(psycopg_stand_ins.ReplayedAsyncConnection, cls)
            return opening.note(psycopg_stand_ins.make(stand_in, cursors, conninfo, options), answer)
        made[0].cursor_factory = _with(AsyncCursorMixin, made[0].cursor_factory)
        return opening.note(made[0], answer)

    connect.__qualname__, connect_async.__qualname__ = "Connection.connect", "AsyncConnection.connect"
    connect_async.__name__ = "connect"
    patches.replace(sync, "connect", classmethod(connect))
    if sys.version_info >= (3, 12):
        connect_async = inspect.markcoroutinefunction(connect_async)
    patches.replace(asynchronous, "connect", classmethod(connect_async))
    patches.replace(module, "connect", sync.connect)
