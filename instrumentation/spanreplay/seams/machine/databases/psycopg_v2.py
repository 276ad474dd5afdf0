"""Seam: psycopg2 as the agent's code uses it outside tools.

Its cursors are implemented in C, and `extras` derives its own from them: our class goes between the two, so that
`DictCursor` and the like work on recorded rows too. In a replay, connections and cursors are made without running the
`__init__` of psycopg2, and no server is contacted.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import psycopg2.extensions

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.agent_patches import Patch, install_patch, recorded_run
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.patches import Patches
from spanreplay.seams.machine.databases.postgres import (
    Column,
    Served,
    build_value,
    describe_statement,
    is_replayed_here,
    note_unrecorded,
)
from spanreplay.seams.machine.databases.psycopg_kept import Opening, call_on, parameter_status, server_version
from spanreplay.seams.machine.databases.told_apart import mark
from spanreplay.seams.machine.databases.transactions import tell
from spanreplay.seams.machine.effects import effects_run

_classes: Final[dict[type, type]] = {}


def _text(query: Any) -> str:
    if isinstance(query, bytes):
        return query.decode("utf-8", "replace")
    return _compose(query) if hasattr(query, "as_string") else str(query)


def _compose(query: Any) -> str:
    """Return a composed statement as text without a connection, which only the server's quoting would need."""
    pieces = getattr(query, "seq", None)
    if pieces is not None:
        return "".join(_compose(each) for each in pieces)
    strings = getattr(query, "strings", None)
    if strings is not None:
        return ".".join('"{}"'.format(str(s).replace('"', '""')) for s in strings)
    wrapped = getattr(query, "wrapped", None)
    name = type(query).__name__
    return str(query.string) if name == "SQL" else f"<{name} {wrapped!r}>"


_Cursor: Final[Any] = psycopg2.extensions.cursor
_Connection: Final[Any] = psycopg2.extensions.connection


class RecordedCursor(_Cursor):  # type: ignore[misc]  # a class of C, known at run time
    """A cursor whose statements are calls."""

    _served: Served | None = None
    row_factory: Any
    _is_ended = False

    def __init__(self, connection: Any, *args: Any, **options: Any) -> None:
        if getattr(connection, "is_stand_in", False):
            self._shown = connection
            self.arraysize = 1
        else:
            _Cursor.__init__(self, connection, *args, **options)

    def execute(self, query: Any, vars: Any = None) -> None:  # noqa: A002 -- its name there
        """Run one statement."""
        self._run("execute", query, vars, lambda: _Cursor.execute(self, query, vars))

    def executemany(self, query: Any, vars_list: Any) -> None:
        """Run one statement with each of the parameters."""
        listed = list(vars_list)
        self._run("executemany", query, listed, lambda: _Cursor.executemany(self, query, listed))

    def copy_from(self, *args: Any, **options: Any) -> Any:
        """Copy rows from a file; not recorded."""
        note_unrecorded("COPY")
        return _Cursor.copy_from(self, *args, **options)

    def copy_to(self, *args: Any, **options: Any) -> Any:
        """Copy rows to a file; not recorded."""
        note_unrecorded("COPY")
        return _Cursor.copy_to(self, *args, **options)

    def copy_expert(self, *args: Any, **options: Any) -> Any:
        """Copy rows from or to a file; not recorded."""
        note_unrecorded("COPY")
        return _Cursor.copy_expert(self, *args, **options)

    def callproc(self, procname: str, parameters: Any = None) -> Any:
        """Call a function of the server."""
        self._run("callproc", procname, parameters, lambda: _Cursor.callproc(self, procname, parameters))
        return parameters

    def mogrify(self, query: Any, vars: Any = None) -> Any:  # noqa: A002 -- its name there
        """Return the statement as it would be sent; a call, because only a connection knows the server's quoting."""
        if recorded_run() is None:
            self.connection.insist("mogrify")
            return _Cursor.mogrify(self, query, vars)
        shown = {"sql": _text(query), "parameters": vars}
        return call_on(
            self.connection,
            lambda: FunctionCall(Kind.TOOL.value, "psycopg2.mogrify", Effect.READ.value, shown),
            lambda: _Cursor.mogrify(self, query, vars),
        )

    def _run(self, name: str, query: Any, parameters: Any, live: Any) -> None:
        connection = self.connection
        if recorded_run() is None and not getattr(connection, "is_stand_in", False):
            self._served = None
            live()
            return
        is_served = True

        def run_live() -> dict[str, Any]:
            nonlocal is_served
            is_served = False
            connection.insist(name)
            self._served = None
            live()
            return self._collect()

        sql = _text(query)
        value = call_on(
            connection, lambda: describe_statement(f"psycopg2.{name}", sql, parameters, connection), run_live
        )
        if is_served:
            self._served = Served(value)

    def _collect(self) -> dict[str, Any]:
        description = _Cursor.description.__get__(self)
        columns = None if description is None else [[c.name, c.type_code] for c in description]
        rowcount, status = _Cursor.rowcount.__get__(self), _Cursor.statusmessage.__get__(self) or ""
        rows: list[Any] = []
        if columns is not None:
            factory = self.row_factory
            self.row_factory = None
            try:
                rows = _Cursor.fetchall(self)
            finally:
                self.row_factory = factory
        value = build_value(rows, columns, rowcount, status)
        self._served = Served({**value, "rows": rows})  # all have been fetched already, also those not recorded
        return value

    # ── What the agent reads ────────────────────────────────────────────────────────────────────
    def _next(self) -> Any:
        row = None if self._served is None else self._served.take()
        if row is None or self.row_factory is None:
            return row
        made = self.row_factory(self)
        for at, value in enumerate(row):
            made[at] = value
        return made

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        return _Cursor.fetchone(self) if self._served is None else self._next()

    def fetchmany(self, size: int | None = None) -> Any:
        """Return the next rows."""
        wanted = self.arraysize if size is None else size
        if self._served is None:
            return _Cursor.fetchmany(self, wanted)
        return [row for _, row in zip(range(wanted), iter(self._next, None), strict=False)]

    def fetchall(self) -> Any:
        """Return all remaining rows."""
        return _Cursor.fetchall(self) if self._served is None else list(iter(self._next, None))

    def __iter__(self) -> Any:
        return _Cursor.__iter__(self) if self._served is None else iter(self._next, None)

    def __next__(self) -> Any:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    @property
    def description(self) -> Any:
        """The columns of the result."""
        if self._served is None:
            return _Cursor.description.__get__(self)
        columns = self._served.columns
        return None if columns is None else tuple(Column(*each) for each in columns)

    @property
    def rowcount(self) -> int:
        """The number of rows that the statement returned or changed."""
        served = self._served
        return _Cursor.rowcount.__get__(self) if served is None else served.rowcount

    @property
    def statusmessage(self) -> Any:
        """The server's status message for the statement."""
        served = self._served
        return _Cursor.statusmessage.__get__(self) if served is None else served.statusmessage

    @property
    def connection(self) -> Any:
        """The connection."""
        shown = self.__dict__.get("_shown")
        return _Cursor.connection.__get__(self) if shown is None else shown

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._is_ended or ("_shown" not in self.__dict__ and bool(_Cursor.closed.__get__(self)))

    def close(self) -> None:
        """Close the cursor."""
        if "_shown" not in self.__dict__:
            _Cursor.close(self)
        self._is_ended = True

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _with_ours(factory: Any) -> Any:
    """Return a cursor class that derives from ours, placed above the C class."""
    if issubclass(factory, RecordedCursor):
        return factory
    made = _classes.get(factory)
    if made is None:
        bases = (RecordedCursor,) if factory is _Cursor else (factory, RecordedCursor)
        made = _classes[factory] = type(factory.__name__, bases, {"__module__": factory.__module__})
    return made


class RecordedConnection(_Connection):  # type: ignore[misc]  # a class of C, known at run time
    """A connection whose cursors are ours."""

    is_stand_in = False
    _default: Any = None
    _is_ended = False

    def cursor(self, name: Any = None, cursor_factory: Any = None, **options: Any) -> Any:
        """Return a cursor of our class; server-side cursors are not recorded."""
        if name is not None:
            note_unrecorded("a cursor of the server")
        factory = cursor_factory or (self._default if self.is_stand_in else self.cursor_factory) or _Cursor
        if not self.is_stand_in:
            factory = factory if name is not None else _with_ours(factory)
            return _Connection.cursor(self, name, cursor_factory=factory, **options)
        if name is not None:
            self.insist("a cursor of the server")
        return _with_ours(factory)(self)

    def lobject(self, *args: Any, **options: Any) -> Any:
        """Open a large object as a file; not recorded."""
        note_unrecorded("a large object")
        return _Connection.lobject(self, *args, **options)

    def insist(self, what: str) -> None:
        """Require a real connection. Raises: OperationalError on a stand-in."""
        if self.is_stand_in:
            raise psycopg2.OperationalError(f"this connection is replayed: {what} can't run live on it")

    # ── Transactions ────────────────────────────────────────────────────────────────────────────
    def _tell(self, name: str, arguments: dict[str, Any], live: Any) -> Any:
        told = {**arguments, **mark(self)}
        return tell(self, f"psycopg2.{name}", told, (lambda: None) if self.is_stand_in else live)

    def commit(self) -> None:
        """Commit the changes."""
        self._tell("commit", {}, lambda: _Connection.commit(self))

    def rollback(self) -> None:
        """Roll the changes back."""
        self._tell("rollback", {}, lambda: _Connection.rollback(self))

    def reset(self) -> None:
        """Roll the changes back and reset the session's settings."""
        self._tell("reset", {}, lambda: _Connection.reset(self))

    def set_session(self, *args: Any, **options: Any) -> None:
        """Change the session's transaction settings."""
        told = {**dict(zip(_SESSION, args, strict=False)), **options}
        self._tell("set", told, lambda: _Connection.set_session(self, *args, **options))
        if self.is_stand_in:
            self.__dict__.update({f"_{name}": value for name, value in told.items()})

    def set_isolation_level(self, level: Any) -> None:
        """Change the isolation level of transactions."""
        self._tell("set", {"isolation_level": level}, lambda: _Connection.set_isolation_level(self, level))

    def tpc_begin(self, xid: Any) -> None:
        """Begin a two-phase transaction."""
        self._tell("tpc_begin", {"id": str(xid)}, lambda: _Connection.tpc_begin(self, xid))

    def tpc_prepare(self) -> None:
        """Prepare the transaction: the first phase of its commit."""
        self._tell("tpc_prepare", {}, lambda: _Connection.tpc_prepare(self))

    def tpc_commit(self, *xid: Any) -> None:
        """Commit the two-phase transaction."""
        self._tell("tpc_commit", {"id": str(xid)}, lambda: _Connection.tpc_commit(self, *xid))

    def tpc_rollback(self, *xid: Any) -> None:
        """Roll the two-phase transaction back."""
        self._tell("tpc_rollback", {"id": str(xid)}, lambda: _Connection.tpc_rollback(self, *xid))

    def close(self) -> None:
        """Close the connection."""
        if not self.is_stand_in:
            _Connection.close(self)
        self._is_ended = True

    @property
    def closed(self) -> int:
        """0 while it is open."""
        return int(self._is_ended) if self.is_stand_in else _Connection.closed.__get__(self)

    @property
    def info(self) -> Any:
        """Information about the connection."""
        if not self.is_stand_in:
            return _Connection.info.__get__(self)
        return SimpleNamespace(server_version=self.server_version, parameter_status=self.get_parameter_status)

    def get_parameter_status(self, parameter: str) -> Any:
        """Return a setting that the server has reported."""
        if self.is_stand_in:
            return parameter_status(self, parameter)
        return _Connection.get_parameter_status(self, parameter)

    @property
    def server_version(self) -> int:
        """The server's version, as a number."""
        return server_version(self) if self.is_stand_in else int(_Connection.server_version.__get__(self))

    @property
    def notices(self) -> Any:
        """Notices that the server has sent besides its results; not recorded."""
        return [] if self.is_stand_in else _Connection.notices.__get__(self)

    @property
    def encoding(self) -> Any:
        """The encoding of texts."""
        return "UTF8" if self.is_stand_in else _Connection.encoding.__get__(self)

    def __enter__(self) -> Any:
        return self if self.is_stand_in else _Connection.__enter__(self)

    def __exit__(self, *exc_info: object) -> Any:
        if not self.is_stand_in:
            return _Connection.__exit__(self, *exc_info)  # which calls `commit` or `rollback`
        (self.commit if exc_info[0] is None else self.rollback)()
        return None


def _mode(name: str) -> property:
    """Return a property for one transaction setting."""

    def read(self: Any) -> Any:
        return (
            self.__dict__.get(f"_{name}", _USUAL[name]) if self.is_stand_in else vars(_Connection)[name].__get__(self)
        )

    def write(self: Any, value: Any) -> None:
        self._tell("set", {name: value}, lambda: vars(_Connection)[name].__set__(self, value))
        if self.is_stand_in:
            self.__dict__[f"_{name}"] = value

    return property(read, write)


_SESSION: Final = ("isolation_level", "readonly", "deferrable", "autocommit")
_USUAL: Final = {"isolation_level": None, "readonly": None, "deferrable": None, "autocommit": False}
for _name in _SESSION:
    setattr(RecordedConnection, _name, _mode(_name))


def _beneath(factory: Any) -> Any:
    """Return the user's connection class with ours as its base."""
    if factory is None or not isinstance(factory, type):
        return RecordedConnection
    made = _classes.get(factory)
    if made is None:
        made = _classes[factory] = type(
            factory.__name__, (factory, RecordedConnection), {"__module__": factory.__module__}
        )
    return made


def install(module: Any, patches: Patches) -> None:
    """Patch `psycopg2.connect`."""
    real = module.connect

    def call(
        patch: Patch, dsn: Any = None, connection_factory: Any = None, cursor_factory: Any = None, **options: Any
    ) -> Any:
        cls = _beneath(connection_factory)

        def name() -> dict[str, Any]:
            return {**(psycopg2.extensions.parse_dsn(dsn) if dsn else {}), **options}

        opening = Opening("psycopg2", name, {})
        if not is_replayed_here():
            if effects_run() is None:
                return real(dsn, cls, cursor_factory, **options)
            opened: list[Any] = []

            def live() -> Any:
                opened.append(real(dsn, cls, cursor_factory, **options))
                return opening.answer(opened[0])

            answer = call_sync(opening.describe, live)
            return opening.note(opened[0], answer)
        answer = None if effects_run() is None else call_sync(opening.describe, opening.answer)
        made = cls.__new__(cls)
        made.is_stand_in, made._default = True, cursor_factory
        return opening.note(made, answer)

    install_patch(patches, module, "connect", call, Patch("psycopg2", "connect", real))
