"""asyncpg's methods that ask the server something, each as one call, by class."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from importlib import import_module
from typing import Any, Final
from weakref import WeakKeyDictionary

from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import call_sync
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.databases.asyncpg_client import stand_ins
from spanreplay.seams.machine.databases.asyncpg_client.answers import (
    ONE,
    PLAIN,
    ROWS,
    VALUE,
    Shape,
    ask,
    ask_now,
    describe,
    describe_sql,
    is_first,
)
from spanreplay.seams.machine.databases.postgres import note_unrecorded

__all__ = ["patch_connection", "patch_cursors", "patch_prepared"]

Method = Callable[..., Coroutine[Any, Any, Any]]
_SHAPES: Final = {
    "execute": PLAIN,
    "executemany": PLAIN,
    "fetch": ROWS,
    "fetchrow": ONE,
    "fetchval": VALUE,
    "fetchmany": ROWS,
}
_MANY: Final = ("executemany", "fetchmany")
"""Methods that run a statement with each of the sequences of arguments."""
_prepared: Final[WeakKeyDictionary[Any, set[Any]]] = WeakKeyDictionary()
"""Run → the statements of which it has recorded how the server describes them."""


# ── Connections ─────────────────────────────────────────────────────────────────────────────────────
class _Unlogged:
    """A block in which the connection's query loggers are not called: they are called outside of the call."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._loggers: Any = None

    def __enter__(self) -> None:
        self._loggers = getattr(self._connection, "_query_loggers", None)
        if self._loggers:
            self._connection._query_loggers = set()

    def __exit__(self, *exc_info: object) -> None:
        if self._loggers:
            self._connection._query_loggers = self._loggers


def _logged(connection: Any, query: Any, args: Any, timeout: Any) -> AbstractContextManager[Any]:
    if recorded_run() is None or not getattr(connection, "_query_loggers", None):
        return nullcontext()
    log: AbstractContextManager[Any] = connection._time_and_log(query, args, timeout)
    return log


def _statement(name: str, real: Method) -> Method:
    shape, is_many = _SHAPES[name], name in _MANY

    @wraps(real)
    async def method(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        if is_many and args:
            args = (list(args[0]), *args[1:])

        async def live() -> Any:
            with _Unlogged(self):
                return await real(self, query, *args, **options)

        shown = {"column": options["column"]} if options.get("column") else {}
        with _logged(self, query, args, options.get("timeout")):
            return await ask(
                self,
                lambda: describe_sql(self, name, query, args[0] if is_many and args else list(args), **shown),
                live,
                shape,
                record_class=options.get("record_class"),
            )

    return method


def _prepare(real: Method) -> Method:
    @wraps(real)
    async def prepare(self: Any, query: Any, **options: Any) -> Any:
        made: list[Any] = []

        async def live() -> Any:
            made.append(await real(self, query, **options))
            return made[0]

        run = recorded_run()
        answer = await ask(
            self, lambda: _describe_prepare(query), live, Shape(_pack_prepared, lambda value, _: _Told(value))
        )
        if run is not None:
            is_first(_prepared, run, query)
        return made[0] if made else _stand_in_of(self, query, options.get("record_class"), answer)

    return prepare


class _Told:
    """What the server has said of a statement, in a replay."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value


def _describe_prepare(query: Any) -> Any:
    return describe("prepare", {"sql": query})


def _pack_prepared(statement: Any) -> dict[str, Any]:
    return {
        "parameters": [list(each) for each in statement.get_parameters()],
        "attributes": [[each.name, list(each.type)] for each in statement.get_attributes()],
    }


def _stand_in_of(connection: Any, query: str, record_class: Any, answer: Any) -> Any:
    made: Any = import_module("asyncpg.prepared_stmt").PreparedStatement
    told = answer.value if isinstance(answer, _Told) else {}
    record_class = record_class or connection._protocol.get_record_class()
    return made(connection, query, stand_ins.State(query, record_class, told))


def _codec(name: str, real: Method) -> Method:
    @wraps(real)
    async def method(self: Any, typename: Any, **options: Any) -> Any:
        shown = {key: options[key] for key in ("schema", "format", "codec_name") if options.get(key) is not None}
        return await ask(
            self, lambda: describe(name, {"type": typename, **shown}), lambda: real(self, typename, **options)
        )

    return method


def _close(real: Method) -> Method:
    @wraps(real)
    async def close(self: Any, *, timeout: Any = None) -> None:
        if self.is_closed():
            await real(self, timeout=timeout)
            return
        await ask(self, lambda: describe("close", {}), lambda: real(self, timeout=timeout))
        if stand_ins.is_stand_in(self):
            self.terminate()

    return close


def _reset(real: Method) -> Method:
    @wraps(real)
    async def reset(self: Any, *, timeout: Any = None) -> None:
        await ask(self, lambda: describe("reset", {}), lambda: real(self, timeout=timeout))
        if stand_ins.is_stand_in(self):
            with plumbing():  # it forgets listeners and transactions, and sends nothing
                await real(self)
            stand_ins.note_transaction(self, is_open=False)

    return reset


def _copy_records(real: Method) -> Method:
    @wraps(real)
    async def copy_records_to_table(self: Any, table_name: Any, *, records: Any, **options: Any) -> Any:
        if isinstance(records, AsyncIterable):
            note_unrecorded("COPY from an asynchronous iterable")
            return await real(self, table_name, records=records, **options)
        listed = list(records)
        named = {key: options[key] for key in ("schema_name", "columns", "where") if options.get(key) is not None}

        def description() -> Any:
            shown = {"table": table_name, **named, "records": VALUE.pack(listed)}
            return describe("copy_records_to_table", shown, Effect.IRREVERSIBLE)

        return await ask(self, description, lambda: real(self, table_name, records=listed, **options))

    return copy_records_to_table


def _unrecorded(what: str, real: Method) -> Method:
    @wraps(real)
    async def method(self: Any, *args: Any, **options: Any) -> Any:
        note_unrecorded(what)
        return await real(self, *args, **options)

    return method


def _told(name: str, real: Callable[..., Any], flat: Callable[[Any], Any], rebuild: Callable[[Any], Any]) -> Any:
    @wraps(real)
    def method(self: Any) -> Any:
        return ask_now(lambda: describe(name, {}), lambda: real(self), flat, rebuild)

    return method


def _log_message(real: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(real)
    def process(self: Any, *args: Any) -> Any:
        run = active_run()
        if self._log_listeners and run is not None:
            run.hole("a message of PostgreSQL reached a log listener: it is not recorded")
        return real(self, *args)

    return process


def patch_connection(patches: Patches, cls: Any) -> None:
    """Patch `asyncpg.Connection`."""
    for name in _SHAPES:
        if hasattr(cls, name):
            patches.replace(cls, name, _statement(name, getattr(cls, name)))
    for name in ("set_type_codec", "reset_type_codec", "set_builtin_type_codec"):
        if hasattr(cls, name):
            patches.replace(cls, name, _codec(name, getattr(cls, name)))
    for name, make in (("prepare", _prepare), ("close", _close), ("reset", _reset)):
        patches.replace(cls, name, make(getattr(cls, name)))
    patches.replace(cls, "copy_records_to_table", _copy_records(cls.copy_records_to_table))
    for name in ("copy_from_table", "copy_from_query", "copy_to_table"):
        patches.replace(cls, name, _unrecorded("COPY", getattr(cls, name)))
    patches.replace(cls, "add_listener", _unrecorded("LISTEN", cls.add_listener))
    patches.replace(cls, "_process_log_message", _log_message(cls._process_log_message))
    version = import_module("asyncpg.types").ServerVersion
    for name, flat, rebuild in (
        ("get_server_pid", int, int),
        ("get_server_version", list, lambda value: version(*value)),
        ("get_settings", read_settings, stand_ins.make_settings),
    ):
        patches.replace(cls, name, _told(name, getattr(cls, name), flat, rebuild))


def read_settings(settings: Any) -> dict[str, str]:
    """Return what the server has reported of itself; {} if asyncpg shows it in another way."""
    from ast import literal_eval

    _, _, shown = repr(settings).partition(" ")
    try:
        found = literal_eval(shown.removesuffix(">"))
    except (ValueError, SyntaxError):
        return {}
    return found if isinstance(found, dict) else {}


# ── Prepared statements ─────────────────────────────────────────────────────────────────────────────
def _note_prepared(statement: Any) -> None:
    """Record how a statement is described that was prepared in another run, on a connection that was kept.

    A replay prepares it in this run, because it has no such connection.
    """
    run = recorded_run()
    if run is not None and is_first(_prepared, run, statement._query):
        call_sync(lambda: _describe_prepare(statement._query), lambda: {"value": _pack_prepared(statement)})


def _prepared_statement(name: str, real: Method) -> Method:
    shape, is_many = _SHAPES[name], name in _MANY

    @wraps(real)
    async def method(self: Any, *args: Any, **options: Any) -> Any:
        if is_many and args:
            args = (list(args[0]), *args[1:])
        _note_prepared(self)
        shown = {"column": options["column"]} if options.get("column") else {}

        def status() -> dict[str, Any]:
            told = self._last_status
            return {} if told is None else {"status": told.decode()}

        def keep(value: dict[str, Any]) -> None:
            self._last_status = value["status"].encode() if "status" in value else None

        return await ask(
            self._connection,
            lambda: describe_sql(
                self._connection, name, self._query, args[0] if is_many and args else list(args), **shown
            ),
            lambda: real(self, *args, **options),
            shape,
            record_class=self._state.record_class,
            keep=keep,
            more=status,
        )

    return method


def patch_prepared(patches: Patches, cls: Any) -> None:
    """Patch `PreparedStatement`; its `explain` is made of a connection's methods."""
    for name in _SHAPES:
        if name in vars(cls):
            patches.replace(cls, name, _prepared_statement(name, getattr(cls, name)))


# ── Cursors ─────────────────────────────────────────────────────────────────────────────────────────
def _give_state(cursor: Any) -> None:
    if cursor._state is None:
        cursor._state = stand_ins.State(cursor._query, cursor._record_class)
        cursor._state.attach()


def _take(cursor: Any) -> Any:
    cursor._check_conn_validity("__anext__")
    if not cursor._buffer:
        raise StopAsyncIteration
    return cursor._buffer.popleft()


def _next(real: Method) -> Method:
    @wraps(real)
    async def __anext__(self: Any) -> Any:  # noqa: N807 -- the name of what it replaces
        if self._buffer or self._exhausted:
            return _take(self) if stand_ins.is_stand_in(self._connection) else await real(self)

        async def live() -> list[Any]:
            try:
                first = await real(self)
            except StopAsyncIteration:
                return []
            rows = [first, *self._buffer]
            self._buffer.clear()
            return rows

        def keep(value: dict[str, Any]) -> None:
            self._exhausted = bool(value.get("exhausted"))
            _give_state(self)

        rows = await ask(
            self._connection,
            lambda: describe_sql(self._connection, "cursor", self._query, list(self._args), prefetch=self._prefetch),
            live,
            ROWS,
            record_class=self._record_class,
            keep=keep,
            more=lambda: {"exhausted": self._exhausted},
        )
        if not rows:
            raise StopAsyncIteration
        self._buffer.extend(rows[1:])
        return rows[0]

    return __anext__


def _open_cursor(real: Method) -> Method:
    @wraps(real)
    async def _init(self: Any, timeout: Any) -> Any:
        async def live() -> None:
            await real(self, timeout)

        await ask(
            self._connection,
            lambda: describe_sql(self._connection, "cursor", self._query, list(self._args)),
            live,
            keep=lambda _: _give_state(self),
        )
        return self

    return _init


def _cursor_method(name: str, real: Method, shape: Shape) -> Method:
    @wraps(real)
    async def method(self: Any, *args: Any, **options: Any) -> Any:
        count = {"count": args[0] if args else options["n"]} if args or "n" in options else {}

        def keep(value: dict[str, Any]) -> None:
            self._exhausted = bool(value.get("exhausted"))

        return await ask(
            self._connection,
            lambda: describe(f"cursor_{name}", {"sql": self._query, **count}),
            lambda: real(self, *args, **options),
            shape,
            record_class=self._record_class,
            keep=keep,
            more=lambda: {"exhausted": self._exhausted},
        )

    return method


def patch_cursors(patches: Patches, module: Any) -> None:
    """Patch `asyncpg.cursor`."""
    patches.replace(module.CursorIterator, "__anext__", _next(module.CursorIterator.__anext__))
    cursor = module.Cursor
    patches.replace(cursor, "_init", _open_cursor(cursor._init))
    for name, shape in (("fetch", ROWS), ("fetchrow", ONE), ("forward", PLAIN)):
        patches.replace(cursor, name, _cursor_method(name, getattr(cursor, name), shape))
