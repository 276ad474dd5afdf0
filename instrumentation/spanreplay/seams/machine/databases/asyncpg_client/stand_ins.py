"""Stand-ins for connections of asyncpg that a replay never opens.

A stand-in is a real `Connection` on asyncpg's own protocol, whose transport answers like an idle server. Rows are made
by that protocol too, because only native code can make a `Record`: each column has a type whose decoder looks the
recorded value up.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Iterable
from importlib import import_module
from typing import Any, Final, cast
from weakref import WeakSet

from spanreplay.model.own_threads import make_lock

__all__ = ["State", "is_stand_in", "make_connection", "make_records", "make_settings", "note_transaction"]

SETTINGS: Final = {"server_version": "15.0", "client_encoding": "UTF8", "TimeZone": "UTC"}
"""What a server reports of itself, if the run that is replayed has not opened this connection."""
_PARAMETERS: Final = {"user": "", "database": "", "server_settings": {}}
_TEXT: Final = 25
"""The number of the type `text`."""
_stand_ins: Final[WeakSet[Any]] = WeakSet()


class _Loop:
    """An event loop on which nothing waits: the answers come at once."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=cast("Any", self))

    def call_soon(self, *_: Any, **__: Any) -> None:
        """Do nothing: asyncpg only tidies up after a request."""

    def call_later(self, *_: Any) -> _Handle:
        return _Handle()

    def time(self) -> float:
        return 0.0

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: Any) -> None:
        """Do nothing: no future of ours fails."""


class _Handle:
    def cancel(self) -> None:
        """Do nothing: it never runs."""


class _Transport(asyncio.Transport):
    """Keeps the last message."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written = bytes(data)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.written = b"".join(map(bytes, list_of_data))

    def abort(self) -> None:
        """Do nothing: nothing is open."""

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """Do nothing: there is nothing to read."""

    def resume_reading(self) -> None:
        """Do nothing: there is nothing to read."""


def _message(letter: str, body: bytes = b"") -> bytes:
    return letter.encode() + struct.pack("!i", len(body) + 4) + body


def _text(value: str) -> bytes:
    return value.encode() + b"\0"


_READY: Final = _message("Z", b"I")
_SYNC: Final = _message("S")
"""The request after which a server says that it is ready."""


def _greeting(settings: dict[str, str]) -> bytes:
    told = b"".join(_message("S", _text(name) + _text(value)) for name, value in settings.items())
    return _message("R", struct.pack("!i", 0)) + told + _message("K", struct.pack("!ii", 0, 0)) + _READY


def _make_protocol(
    transport: _Transport, addr: Any, parameters: Any, record_class: type, settings: dict[str, str]
) -> Any:
    loop = _Loop()
    protocol = _protocol_class()(addr, loop.create_future(), parameters, record_class, loop)
    protocol.connection_made(transport)
    protocol.data_received(_greeting(settings))
    return protocol


_classes: Final[dict[str, Any]] = {}


def _protocol_class() -> Any:
    """Return asyncpg's protocol, with the transaction state of a connection that was never opened."""
    if "protocol" not in _classes:
        real = import_module("asyncpg.protocol").Protocol
        own = {
            "is_replayed_in_transaction": False,
            "is_in_transaction": lambda self: self.is_replayed_in_transaction,
            "__module__": real.__module__,
        }
        _classes["protocol"] = type(real.__name__, (real,), own)
    return _classes["protocol"]


def _configure(options: dict[str, Any], told: dict[str, Any]) -> tuple[Any, Any]:
    """Return the connection's configuration and parameters as asyncpg keeps them, without a password."""
    utils = import_module("asyncpg.connect_utils")
    config, parameters = utils._ClientConfiguration, utils._ConnectionParameters
    defaults = {"statement_cache_size": 0, "max_cached_statement_lifetime": 0, "max_cacheable_statement_size": 0}
    known = {**defaults, **options}
    return (
        config(*(known.get(name) for name in config._fields)),
        parameters(*(told.get(name) or _PARAMETERS.get(name) for name in parameters._fields)),
    )


def make_connection(cls: type, record_class: type, loop: Any, options: dict[str, Any], told: dict[str, Any]) -> Any:
    """Make a connection of this class; `told` is what the recorded one has learned of its server."""
    config, parameters = _configure(options, told)
    address = told.get("address") or ("localhost", 5432)
    settings = {**SETTINGS, **(told.get("settings") or {})}
    transport = _Transport()
    protocol = _make_protocol(transport, address, parameters, record_class, settings)
    made: Any = cast("Any", cls)(protocol, transport, loop, address, config, parameters)
    protocol.set_connection(made)
    _stand_ins.add(made)
    return made


def is_stand_in(connection: Any) -> bool:
    """Whether a connection was never opened."""
    return connection in _stand_ins


def note_transaction(connection: Any, *, is_open: bool) -> None:
    """Set whether a stand-in is in a transaction."""
    if connection._protocol is not None:
        connection._protocol.is_replayed_in_transaction = is_open


def make_settings(settings: dict[str, str]) -> Any:
    """Make the settings of a server that reports these."""
    parameters = _configure({}, {})[1]
    record_class = import_module("asyncpg").Record
    return _make_protocol(_Transport(), ("localhost", 5432), parameters, record_class, settings).get_settings()


class State:
    """The prepared statement behind a `PreparedStatement` or a cursor."""

    def __init__(self, query: str, record_class: Any, told: dict[str, Any] | None = None) -> None:
        self.query, self.record_class, self.name = query, record_class, ""
        self.closed, self.refs, self.ignore_custom_codec = False, 0, False
        self._told = told or {}

    def attach(self) -> None:
        """Count a user."""
        self.refs += 1

    def detach(self) -> None:
        """Count a user less."""
        self.refs -= 1

    def mark_closed(self) -> None:
        """Note that it can't be used any more."""
        self.closed = True

    def _get_parameters(self) -> tuple[Any, ...]:
        return tuple(import_module("asyncpg.types").Type(*each) for each in self._told.get("parameters", ()))

    def _get_attributes(self) -> tuple[Any, ...]:
        types = import_module("asyncpg.types")
        return tuple(types.Attribute(name, types.Type(*kind)) for name, kind in self._told.get("attributes", ()))


# ── Records ─────────────────────────────────────────────────────────────────────────────────────────
class _Records:
    """Makes records of recorded values."""

    def __init__(self) -> None:
        asyncpg = import_module("asyncpg")
        maker = type("Maker", (asyncpg.Connection,), {"__slots__": (), "__del__": lambda _: None})
        self._values: list[Any] = []
        self._connection = make_connection(maker, asyncpg.Record, _Loop(), {}, {})
        self._protocol = self._connection._protocol
        self._no_timeout = import_module("asyncpg.protocol").NO_TIMEOUT
        add_codec, name, rest = self._protocol.get_settings().add_python_codec, "text", (str, self._find, "text")
        try:
            add_codec(_TEXT, name, "pg_catalog", [], "scalar", *rest)
        except TypeError:  # before 0.29 without the parts of the type
            add_codec(_TEXT, name, "pg_catalog", "scalar", *rest)

    def _find(self, text: str) -> Any:
        return self._values[int(text)]

    def make(self, columns: list[str], rows: list[list[Any]], record_class: type) -> list[Any]:
        """Make one record for each row."""
        if not rows:
            return []
        self._values = [value for row in rows for value in row]
        protocol = self._protocol
        prepared = protocol.prepare("", "SELECT", self._no_timeout, record_class=record_class)
        state = self._drive(prepared, lambda: _described(columns))
        state._init_types()
        state._init_codecs()
        asked = protocol.bind_execute(state, (), "", 0, True, self._no_timeout)
        found = self._drive(asked, lambda: _result(rows))
        self._values = []
        return list(found[0])

    def _drive(self, asked: Coroutine[Any, Any, Any], answer: Callable[[], bytes]) -> Any:
        """Run a request of the protocol to its end."""
        try:
            asked.send(None)
            is_synced = self._connection._transport.written.endswith(_SYNC)
            self._protocol.data_received(answer() + (_READY if is_synced else b""))
            asked.send(None)
        except StopIteration as done:
            return done.value
        raise RuntimeError("asyncpg waits for more than the answer of one statement")


def _described(columns: list[str]) -> bytes:
    described = b"".join(_text(name) + struct.pack("!ihihih", 0, 0, _TEXT, -1, -1, 0) for name in columns)
    row = _message("T", struct.pack("!h", len(columns)) + described)
    return _message("1") + _message("t", struct.pack("!h", 0)) + row


def _result(rows: list[list[Any]]) -> bytes:
    parts, at = [_message("2")], 0
    for row in rows:
        fields = []
        for value in row:
            text = str(at).encode()
            fields.append(struct.pack("!i", -1) if value is None else struct.pack("!i", len(text)) + text)
            at += 1
        parts.append(_message("D", struct.pack("!h", len(row)) + b"".join(fields)))
    return b"".join([*parts, _message("C", _text("SELECT"))])


_lock: Final = make_lock()


def make_records(columns: list[str], rows: list[list[Any]], record_class: type | None = None) -> list[Any]:
    """Make records with these columns, which may have the same name, of `asyncpg.Record` or a subclass."""
    with _lock:
        if "records" not in _classes:
            _classes["records"] = _Records()
        maker = _classes.pop("records")  # kept if it works: its protocol is not ready after an error
        found: list[Any] = maker.make(columns, rows, record_class or import_module("asyncpg").Record)
        _classes["records"] = maker
        return found
