"""Seam: `sqlite3`, as the agent's code uses it outside of tools.

A connection that the agent makes is one of ours, a subclass: each `execute` is a call, with its rows. In a replay the
connection is to an empty database in memory, and rows, counts and errors come from the recording; the agent's own
row factory runs on them. Rows are fetched when the statement runs, up to a limit. The database of a library that keeps
it for itself is opened as it is, in a replay in the overlay: a copy of what is there now.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote, unquote

from spanreplay import config
from spanreplay._patch import Patches
from spanreplay.call import Effect, Kind
from spanreplay.leaf import Leaf, call_sync
from spanreplay.local.patching import Patch, asks, install_patch, recorded_run
from spanreplay.run import active_run

_getframe: Final = sys._getframe
_READS: Final = ("select", "explain", "pragma", "values")
_classes: Final[dict[type, type]] = {}


def _effect(sql: str) -> str:
    word = sql.lstrip(" \t\r\n(;").split(None, 1)
    return Effect.READ.value if word and word[0].lower() in _READS else Effect.IRREVERSIBLE.value


class _Result:
    """What a statement left behind, as recorded: rows, their columns, counts."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.columns: list[str] | None = value["columns"]
        self.rows: deque[tuple[Any, ...]] = deque(tuple(row) for row in value["rows"])
        self.rowcount: int = value["rowcount"]
        self.lastrowid: int | None = value["lastrowid"]


class CursorMixin:
    """Records or serves what a cursor does; goes before `sqlite3.Cursor` or a class made of it."""

    _result: _Result | None = None
    _is_served = False

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        """Run one statement."""
        return self._run("execute", sql, parameters, lambda: super(CursorMixin, self).execute(sql, parameters))  # type: ignore[misc]  # of the class that this is mixed into

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Any:
        """Run one statement with each of the parameters."""
        listed = list(parameters)
        return self._run("executemany", sql, listed, lambda: super(CursorMixin, self).executemany(sql, listed))  # type: ignore[misc]  # as above

    def executescript(self, script: str, /) -> Any:
        """Run many statements."""
        return self._run("executescript", script, (), lambda: super(CursorMixin, self).executescript(script))  # type: ignore[misc]  # as above

    def _run(self, name: str, sql: str, parameters: Any, live: Callable[[], Any]) -> Any:
        connection: Any = self.connection  # type: ignore[attr-defined]  # sqlite3.Cursor's
        if recorded_run() is None:
            self._result = None
            connection._insist_on_file(name)
            live()
            return self
        is_served = True

        def run_live() -> dict[str, Any]:
            nonlocal is_served
            is_served = False
            connection._insist_on_file(name)
            self._result = None
            live()
            return self._collect()

        def describe() -> Leaf:
            arguments = {"database": connection._database, "sql": sql, "parameters": parameters}
            return Leaf(Kind.TOOL.value, f"sqlite3.{name}", _effect(sql), arguments)

        value = call_sync(describe, run_live)
        if is_served:
            connection._changes, connection._is_in_transaction = value["total_changes"], value["in_transaction"]
            self._show_columns(value["columns"])
            self._result = _Result(value)
        return self

    def _collect(self) -> dict[str, Any]:
        """Fetch what there is, so that it can be recorded before the agent sees it."""
        cursor: Any = self
        description = super().description  # type: ignore[misc]  # sqlite3.Cursor's
        columns = None if description is None else [column[0] for column in description]
        factory, cursor.row_factory = cursor.row_factory, None
        try:
            rows = super().fetchmany(config.ROWS_MAX) if columns is not None else []  # type: ignore[misc]  # as above
        finally:
            cursor.row_factory = factory
        value = {
            "columns": columns,
            "rows": [list(row) for row in rows],
            "rowcount": super().rowcount,  # type: ignore[misc]  # as above
            "lastrowid": super().lastrowid,  # type: ignore[misc]  # as above
            "total_changes": cursor.connection.total_changes,
            "in_transaction": cursor.connection.in_transaction,
        }
        if len(rows) == config.ROWS_MAX:
            run = recorded_run()
            if run is not None:
                run.hole(f"a query gave {config.ROWS_MAX} rows or more: those beyond are not recorded")
        self._result = _Result(value)
        return value

    def _show_columns(self, columns: list[str] | None) -> None:
        """Give the real cursor the recorded column names, which `sqlite3.Row` and `description` read there."""
        if columns is not None:
            names = ", ".join('NULL AS "{}"'.format(name.replace('"', '""')) for name in columns)
            super().execute(f"SELECT {names} WHERE 0")  # type: ignore[misc]

    # ── What the agent reads ────────────────────────────────────────────────────────────────────────
    @property
    def rowcount(self) -> int:
        """Rows changed by the last statement."""
        result = self._result
        return super().rowcount if result is None else result.rowcount  # type: ignore[misc]  # as above

    @property
    def lastrowid(self) -> int | None:
        """The row that the last insert made."""
        result = self._result
        return super().lastrowid if result is None else result.lastrowid  # type: ignore[misc]  # as above

    def _make_row(self, row: tuple[Any, ...]) -> Any:
        factory = self.row_factory  # type: ignore[attr-defined]  # sqlite3.Cursor's
        return row if factory is None else factory(self, row)

    def fetchone(self) -> Any:
        """The next row, or None."""
        result = self._result
        if result is not None and result.rows:
            return self._make_row(result.rows.popleft())
        return super().fetchone()  # type: ignore[misc]  # as above

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """The next rows, at most `size`."""
        wanted = self.arraysize if size is None else size  # type: ignore[attr-defined]  # sqlite3.Cursor's
        return [row for _, row in zip(range(wanted), iter(self.fetchone, None), strict=False)]

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        return list(iter(self.fetchone, None))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row


class ConnectionMixin:
    """Goes before `sqlite3.Connection` or a class made of it."""

    _database = ""
    _is_memory_instead = False
    _changes: int | None = None
    _is_in_transaction: bool | None = None

    def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
        """A cursor of ours."""
        if isinstance(factory, type) and issubclass(factory, sqlite3.Cursor):
            factory = _with(CursorMixin, factory)
        return super().cursor(factory)  # type: ignore[misc]  # of the class that this is mixed into

    def execute(self, *args: Any) -> Any:
        """Run one statement with a cursor of its own."""
        return self.cursor().execute(*args)

    def executemany(self, *args: Any) -> Any:
        """Run one statement with each of the parameters."""
        return self.cursor().executemany(*args)

    def executescript(self, *args: Any) -> Any:
        """Run many statements."""
        return self.cursor().executescript(*args)

    @property
    def total_changes(self) -> int:
        """Rows changed since the connection was made."""
        return super().total_changes if self._changes is None else self._changes  # type: ignore[misc]  # as above

    @property
    def in_transaction(self) -> bool:
        """Whether changes wait to be committed."""
        if self._is_in_transaction is None:
            return super().in_transaction  # type: ignore[misc,no-any-return]  # as above
        return self._is_in_transaction

    def commit(self) -> None:
        """Keep the changes."""
        super().commit()  # type: ignore[misc]  # as above
        self._is_in_transaction = None

    def rollback(self) -> None:
        """Take the changes back."""
        super().rollback()  # type: ignore[misc]  # as above
        self._is_in_transaction = None

    def _insist_on_file(self, what: str) -> None:
        if self._is_memory_instead:
            raise sqlite3.ProgrammingError(
                f"this connection was made outside of a tool and is replayed: {what} can't run live on it"
            )


def _with(mixin: type, base: type) -> type:
    if issubclass(base, mixin):
        return base
    made = _classes.get(base)
    if made is None:
        made = _classes[base] = type(base.__name__, (mixin, base), {"__module__": base.__module__})
    return made


def _connect(real: Any, factory: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    database = args[0] if args else kwargs["database"]
    is_file = True
    made: list[Any] = []
    ours = _with(ConnectionMixin, factory)

    def live() -> None:
        made.append(real(*args, **{**kwargs, "factory": ours}))

    shown = database if isinstance(database, str) else str(getattr(database, "__fspath__", lambda: database)())

    def describe() -> Leaf:
        return Leaf(Kind.TOOL.value, "sqlite3.connect", Effect.READ.value, {"database": shown})

    call_sync(describe, live)
    if not made:
        is_file = False
        rest = {name: value for name, value in kwargs.items() if name not in ("database", "uri")}
        made.append(real(":memory:", *args[1:5], **{**rest, "factory": ours}))
    connection = made[0]
    connection._database = shown
    connection._is_memory_instead = not is_file
    return connection


_IN_MEMORY: Final = ("", ":memory:")


def _move(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a connection that is no call, with the copy of a replay in the place of the world's database."""
    run = active_run()
    given = args[0] if args else kwargs.get("database")
    if run is None or run.overlay is None or not isinstance(given, (str, bytes, os.PathLike)):
        return args, kwargs
    name = os.fsdecode(given)
    is_uri = bool(kwargs.get("uri", args[7] if len(args) > 7 else False)) and name.startswith("file:")
    path, _, query = name.removeprefix("file:").partition("?") if is_uri else (name, "", "")
    path = unquote(path).removeprefix("//") if is_uri else path
    if path in _IN_MEMORY or "mode=memory" in query:
        return args, kwargs
    place = run.overlay.take(path)
    for each in _BESIDE:
        if os.path.exists(path + each):  # noqa: PTH110 -- any text
            run.overlay.take(path + each)
    moved = f"file:{quote(place)}?{query}" if is_uri else place
    return ((moved, *args[1:]), kwargs) if args else (args, {**kwargs, "database": moved})


_BESIDE: Final = ("-wal", "-journal")
"""Files that belong to a database beside its own."""


def install(module: Any, patches: Patches) -> None:
    """Patch `sqlite3.connect`."""
    real = module.connect

    def call(patch: Patch, *args: Any, **kwargs: Any) -> Any:
        # `factory` is the sixth positional argument
        factory = kwargs.get("factory", args[5] if len(args) > 5 else sqlite3.Connection)
        is_ours = isinstance(factory, type) and issubclass(factory, sqlite3.Connection) and len(args) <= 5
        if not is_ours or not asks(_getframe(1)) or recorded_run() is None:
            args, kwargs = _move(args, kwargs)
            return real(*args, **kwargs)
        return _connect(real, factory, args, kwargs)

    for owner in (module, module.dbapi2):
        install_patch(patches, owner, "connect", call, Patch(owner.__name__, "connect", real))
