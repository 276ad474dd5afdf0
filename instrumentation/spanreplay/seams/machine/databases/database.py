"""Seam: `sqlite3` as the agent's code uses it outside tools.

A connection that the agent makes is of our subclass: each `execute` is a call, with its rows. In a replay the
connection is to an empty in-memory database, and rows, counts and errors come from the recording; the agent's own row
factory runs on them. Rows are fetched when the statement runs, up to a limit. A library's private database is opened as
it is; in a replay it is opened in the overlay, as a copy of the present one.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import quote, unquote

from spanreplay.model import config
from spanreplay.model.call import Effect, Kind
from spanreplay.model.code_state import NAMES
from spanreplay.runtime.agent_patches import Patch, install_patch, recorded_run
from spanreplay.runtime.caller.places import is_code
from spanreplay.runtime.caller.whoever import is_of_run
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.noted_effects import CODE_OF_MODULES, sees_effects
from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.databases.told_apart import is_of_script, mark, note_made
from spanreplay.seams.machine.effects import describe_effect, effects_run
from spanreplay.seams.machine.files.changes import look_before

_getframe: Final = sys._getframe
_TRACED: Final = "traced"
"""Member of a response: the statements that were reported to the agent's trace callback."""
_READS: Final = ("select", "explain", "pragma", "values")
_classes: Final[dict[type, type]] = {}


def _effect(sql: str) -> str:
    word = sql.lstrip(" \t\r\n(;").split(None, 1)
    return Effect.READ.value if word and word[0].lower() in _READS else Effect.IRREVERSIBLE.value


class _Result:
    """A statement's recorded result: rows, their columns, counts."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.columns: list[str] | None = value["columns"]
        self.rows: deque[tuple[Any, ...]] = deque(tuple(row) for row in value["rows"])
        self.rowcount: int = value["rowcount"]
        self.lastrowid: int | None = value["lastrowid"]


class CursorMixin:
    """Records or serves what a cursor does; precedes `sqlite3.Cursor` or a subclass of it in the MRO."""

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
            return {**self._collect(), **connection._take_traced()}

        def describe() -> FunctionCall:
            arguments = {"database": connection._database, "sql": sql, "parameters": parameters, **mark(connection)}
            return FunctionCall(Kind.TOOL.value, f"sqlite3.{name}", _effect(sql), arguments)

        with connection._tracing():
            value = call_sync(describe, run_live)
            if is_served:
                connection._changes, connection._is_in_transaction = value["total_changes"], value["in_transaction"]
                connection._traced = value.get(_TRACED, [])
                self._show_columns(value["columns"])
                self._result = _Result(value)
        return self

    def _collect(self) -> dict[str, Any]:
        """Fetch the rows, so that they can be recorded before the agent sees them."""
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
            run = active_run()
            if run is not None:
                run.hole(f"a query gave {config.ROWS_MAX} rows or more: those beyond are not recorded")
        self._result = _Result(value)
        return value

    def _show_columns(self, columns: list[str] | None) -> None:
        """Give the real cursor the recorded column names, which `sqlite3.Row` and `description` read there."""
        if columns is not None:
            names = ", ".join('NULL AS "{}"'.format(name.replace('"', '""')) for name in columns)
            with self.connection._without_callbacks():  # type: ignore[attr-defined]  # sqlite3.Cursor's
                super().execute(f"SELECT {names} WHERE 0")  # type: ignore[misc]

    # ── What the agent reads ────────────────────────────────────────────────────────────────────────
    @property
    def rowcount(self) -> int:
        """Rows changed by the last statement."""
        result = self._result
        return super().rowcount if result is None else result.rowcount  # type: ignore[misc]  # as above

    @property
    def lastrowid(self) -> int | None:
        """The row ID of the last insert."""
        result = self._result
        return super().lastrowid if result is None else result.lastrowid  # type: ignore[misc]  # as above

    def _make_row(self, row: tuple[Any, ...]) -> Any:
        factory = self.row_factory  # type: ignore[attr-defined]  # sqlite3.Cursor's
        return row if factory is None else factory(self, row)

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        result = self._result
        if result is not None and result.rows:
            return self._make_row(result.rows.popleft())
        return super().fetchone()  # type: ignore[misc]  # as above

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """Return the next rows, at most `size`."""
        wanted = self.arraysize if size is None else size  # type: ignore[attr-defined]  # sqlite3.Cursor's
        return [row for _, row in zip(range(wanted), iter(self.fetchone, None), strict=False)]

    def fetchall(self) -> list[Any]:
        """Return all remaining rows."""
        return list(iter(self.fetchone, None))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row


class ConnectionMixin:
    """Precedes `sqlite3.Connection` or a subclass of it in the MRO."""

    _database = ""
    _is_memory_instead = False
    _changes: int | None = None
    _is_in_transaction: bool | None = None
    _callback: Callable[[str], Any] | None = None
    """The agent's trace callback, which is told of each statement."""
    _traced: Sequence[str] = ()
    """Statements reported once their call is over: what the callback does then is the agent's own, in a replay too."""
    _is_quiet = False

    def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
        """Return a cursor of our subclass."""
        if isinstance(factory, type) and issubclass(factory, sqlite3.Cursor):
            factory = _with(CursorMixin, factory)
        return super().cursor(factory)  # type: ignore[misc]  # of the class that this is mixed into

    def execute(self, *args: Any) -> Any:
        """Run one statement with a new cursor."""
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
        """Whether there are uncommitted changes."""
        if self._is_in_transaction is None:
            return super().in_transaction  # type: ignore[misc,no-any-return]  # as above
        return self._is_in_transaction

    # ── Transactions ────────────────────────────────────────────────────────────────────────────────
    def commit(self) -> None:
        """Commit the changes."""
        self._tell("commit", {}, lambda: super(ConnectionMixin, self).commit())  # type: ignore[misc]  # as above

    def rollback(self) -> None:
        """Roll the changes back."""
        self._tell("rollback", {}, lambda: super(ConnectionMixin, self).rollback())  # type: ignore[misc]  # as above

    def __exit__(self, kind: Any, value: Any, trace: Any) -> Any:
        """End a `with` block: commit the changes, or roll them back."""
        how = "commit" if kind is None and value is None and trace is None else "rollback"
        return self._tell(how, {}, lambda: super(ConnectionMixin, self).__exit__(kind, value, trace))  # type: ignore[misc]  # as above

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; those that affect transactions are calls."""
        if name in _MODES:
            self._tell("set", {name: value}, lambda: None)
        super().__setattr__(name, value)

    def backup(self, target: Any, **options: Any) -> None:
        """Copy the database into another one."""
        shown = {"target": getattr(target, "_database", ""), **{n: v for n, v in options.items() if n in _NAMES}}
        self._tell("backup", shown, lambda: super(ConnectionMixin, self).backup(target, **options))  # type: ignore[misc]  # as above

    def deserialize(self, data: Any, /, **options: Any) -> None:
        """Replace the database's content."""
        shown = {"content": bytes(data), **options}
        self._tell("deserialize", shown, lambda: super(ConnectionMixin, self).deserialize(data, **options))  # type: ignore[misc]  # as above

    def serialize(self, **options: Any) -> bytes:
        """Return the whole database as bytes."""
        live = super().serialize  # type: ignore[misc]  # as above
        if not self._database or effects_run() is None:
            return bytes(live(**options))
        shown = {"database": self._database, **options}
        found: bytes = call_sync(
            lambda: describe_effect("sqlite3.serialize", shown, Effect.READ), lambda: live(**options)
        )
        return found

    def blobopen(self, *args: Any, **options: Any) -> Any:
        """Open a value as a file; its reads and writes can't be recorded."""
        run = effects_run()
        if self._database and run is not None:
            run.resolver.leave_out("a sqlite3 blob was opened: its reads and writes are not recorded")
        return super().blobopen(*args, **options)  # type: ignore[misc]  # as above

    def _tell(self, name: str, arguments: dict[str, Any], live: Callable[[], Any]) -> Any:
        """Make a database operation without rows a call; where it is not a call, only run `live`."""
        if not self._database or effects_run() is None:
            self._is_in_transaction = None
            return live()
        is_served, given = True, None

        def run_live() -> dict[str, Any]:
            nonlocal is_served, given
            is_served = False
            self._insist_on_file(name)
            given = live()
            made = {"total_changes": super(ConnectionMixin, self).total_changes, "in_transaction": self.in_transaction}  # type: ignore[misc]  # as above
            return {**made, **self._take_traced()}

        shown = {"database": self._database, **arguments, **mark(self)}
        with self._tracing():
            value = call_sync(lambda: describe_effect(f"sqlite3.{name}", shown), run_live)
            if is_served:
                self._changes, self._is_in_transaction = value["total_changes"], value["in_transaction"]
                self._traced = value.get(_TRACED, [])
        return given

    # ── Functions of the agent that SQLite calls ────────────────────────────────────────────────────
    def set_trace_callback(self, trace_callback: Callable[[str], Any] | None) -> None:
        """Set the agent's trace callback, which is told of each statement."""
        self._callback = trace_callback
        super().set_trace_callback(trace_callback and self._trace)  # type: ignore[misc]  # as above

    def set_progress_handler(self, progress_handler: Callable[[], Any] | None, *args: Any, **options: Any) -> None:
        """Set the agent's progress handler, which can stop a running statement."""
        handler = self._silenced(progress_handler)
        super().set_progress_handler(handler, *args, **options)  # type: ignore[misc]  # as above

    def _silenced(self, function: Any) -> Any:
        """Return a function that only runs for the agent's own statements; a non-callable is returned unchanged."""
        return (lambda *args: 0 if self._is_quiet else function(*args)) if callable(function) else function

    def _trace(self, statement: str) -> None:
        if self._is_quiet or self._callback is None:
            return
        if isinstance(self._traced, list):
            self._traced.append(statement)
        else:
            self._callback(statement)

    @contextmanager
    def _without_callbacks(self) -> Iterator[None]:
        """A block in which we run a statement of our own."""
        self._is_quiet = True
        try:
            yield
        finally:
            self._is_quiet = False

    @contextmanager
    def _tracing(self) -> Iterator[None]:
        """A call, after which the agent's callback is told of its statements."""
        self._traced = []
        try:
            yield
        finally:
            traced, self._traced, tell = self._traced, (), self._callback
            for statement in traced if tell is not None else ():
                with suppress(Exception):  # as sqlite3 does
                    tell(statement)  # type: ignore[misc]  # not None

    def _take_traced(self) -> dict[str, Any]:
        """Return, for the record of a call, the statements to report to the agent's callback after it."""
        return {_TRACED: list(self._traced)} if self._traced else {}

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

    def describe() -> FunctionCall:
        arguments = {"database": shown, **_modes(args, kwargs)}
        return FunctionCall(Kind.TOOL.value, "sqlite3.connect", Effect.READ.value, arguments)

    _begin(database, is_uri=bool(kwargs.get("uri")))
    call_sync(describe, live)
    if not made:
        is_file = False
        rest = {name: value for name, value in kwargs.items() if name not in ("database", "uri")}
        made.append(real(":memory:", *args[1:5], **{**rest, "factory": ours}))
    connection = made[0]
    connection._database = shown
    note_made(connection, f"sqlite3 {shown}")
    connection._is_memory_instead = not is_file
    return connection


def _begin(database: Any, *, is_uri: bool) -> None:
    """Record whether a database inside the code tree existed; from here on a replay has a file there as well."""
    run = recorded_run()
    if run is None or run.written is None or run.written.is_outside():
        return
    if not isinstance(database, (str, bytes, os.PathLike)):
        return
    path, query = _split(os.fsdecode(database), is_uri=is_uri)
    run.written.hand_over(path)
    if run.written.state is None:
        return
    if path in _IN_MEMORY or "mode=memory" in query or "mode=ro" in query or not is_code(path):
        return
    # Which unit of a server opens a connection depends on the load
    if is_of_script() or not run.resolver.has(CODE_OF_MODULES):
        look_before(run, path, NAMES)
    if run.overlay is not None:
        run.overlay.have(path, "file")


def _split(name: str, *, is_uri: bool) -> tuple[str, str]:
    """Split a database's name into its path and query."""
    if not (is_uri and name.startswith("file:")):
        return name, ""
    path, _, query = name.removeprefix("file:").partition("?")
    return unquote(path).removeprefix("//"), query


def _modes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a connection's transaction settings that differ from the default."""
    run = recorded_run()
    if run is None or not sees_effects(run):
        return {}
    given = {**({"isolation_level": args[3]} if len(args) > 3 else {}), **kwargs}
    found = {name: given[name] for name, usual in _MODES.items() if given.get(name, usual) != usual}
    return {**found, "uri": True} if given.get("uri") else found


_MODES: Final = {"isolation_level": "", "autocommit": getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", -1)}
"""Attributes of a connection that affect transactions, with their defaults."""
_NAMES: Final = ("name", "pages")
_IN_MEMORY: Final = ("", ":memory:")
_TOLD: Final = (
    "create_function", "create_aggregate", "create_window_function", "create_collation", "set_authorizer", "setlimit",
    "setconfig", "enable_load_extension", "load_extension",
)  # fmt: skip
"""Methods of a connection that change how it runs statements."""


def _told(name: str) -> Any:
    def tell(self: Any, *args: Any, **options: Any) -> Any:
        real = getattr(super(ConnectionMixin, self), name)
        given = {str(at): _show(each) for at, each in enumerate(args)}
        given.update({each: _show(value) for each, value in options.items()})
        self._tell(name, given, lambda: None)  # then run for real: the replay's own database needs it too
        if name == "set_authorizer":  # not asked about statements other than the agent's
            args, options = tuple(map(self._silenced, args)), {n: self._silenced(v) for n, v in options.items()}
        return real(*args, **options)

    tell.__name__, tell.__qualname__ = name, f"Connection.{name}"
    tell.__doc__ = getattr(getattr(sqlite3.Connection, name), "__doc__", None)
    return tell


def _show(value: Any) -> Any:
    """Return a number or text as it is; for a function its name, because its body is code."""
    is_plain = value is None or isinstance(value, (bool, int, float, str, bytes))
    return value if is_plain else str(getattr(value, "__qualname__", type(value).__qualname__))


for _name in _TOLD:
    if hasattr(sqlite3.Connection, _name):
        setattr(ConnectionMixin, _name, _told(_name))


def _move(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a connection that is not a call; in a replay they name the overlay's copy."""
    run = active_run()
    given = args[0] if args else kwargs.get("database")
    if run is None or run.overlay is None or not isinstance(given, (str, bytes, os.PathLike)):
        return args, kwargs
    name = os.fsdecode(given)
    is_uri = bool(kwargs.get("uri", args[7] if len(args) > 7 else False)) and name.startswith("file:")
    path, query = _split(name, is_uri=is_uri)
    if path in _IN_MEMORY or "mode=memory" in query:
        return args, kwargs
    place = run.overlay.take(path)
    for each in _BESIDE:
        if os.path.exists(path + each):  # noqa: PTH110 -- any text
            run.overlay.take(path + each)
    moved = f"file:{quote(place)}?{query}" if is_uri else place
    return ((moved, *args[1:]), kwargs) if args else (args, {**kwargs, "database": moved})


_BESIDE: Final = ("-wal", "-journal")
"""Suffixes of a database's companion files."""


def install(module: Any, patches: Patches) -> None:
    """Patch `sqlite3.connect`."""
    real = module.connect

    def call(patch: Patch, *args: Any, **kwargs: Any) -> Any:
        # `factory` is the sixth positional argument
        factory = kwargs.get("factory", args[5] if len(args) > 5 else sqlite3.Connection)
        is_ours = isinstance(factory, type) and issubclass(factory, sqlite3.Connection) and len(args) <= 5
        if not is_ours or not is_of_run(_getframe(1)) or recorded_run() is None:
            args, kwargs = _move(args, kwargs)
            return real(*args, **kwargs)
        return _connect(real, factory, args, kwargs)

    for owner in (module, module.dbapi2):
        install_patch(patches, owner, "connect", call, Patch(owner.__name__, "connect", real))
