"""Records one request of Tornado's server, between its connection and its application.

    http:request    (read)    method, path, query, headers, addresses
    http:body       (read)    the body, once its last part has arrived
    http:disconnect (read)    the client went away before the response was complete
    http:response   (write)   status, headers and body, when the application finishes the response

The application gets a connection that passes everything on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Outcome
from spanreplay.runtime.process.own_ports import note_units
from spanreplay.runtime.run import active_run
from spanreplay.units import caller, factory
from spanreplay.units.asgi_websocket import record_end
from spanreplay.units.http_exchange import DISCONNECT, PART, REQUEST, ReceivedBody, Response, read_in
from spanreplay.units.unit_run import UnitRun

__all__ = ["PARTS_TAKEN", "TAKEN_OVER", "Exchange", "Received", "RecordedExchange", "find_port"]

PARTS_TAKEN: Final = "parts"
"""Member of `http:disconnect`: how many parts of the response the application had written."""
_BY_SERVER: Final = "date"
"""The header that Tornado adds to each response: no replay has the same."""
_OF_ANOTHER: Final = "another request, or the process itself, wrote to this one's client: a replay does not do that"
TAKEN_OVER: Final = "its handler has taken over the connection: what is sent there is not recorded"


class Exchange:
    """One request: the connection that the application knows. Base of recording and replay."""

    def __init__(self) -> None:
        self.response = Response()
        self.raised: BaseException | None = None
        self.is_gone = False
        self.is_session = False
        """Whether the request has become a websocket session."""

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A block whose calls belong to the request."""
        yield

    def hole(self, reason: str) -> None:
        """Note that the recording is incomplete."""

    def is_of_another(self) -> bool:
        """Whether the code that is writing belongs to another request or the process."""
        return False

    def _begin(self, start_line: Any, headers: Any, chunk: Any) -> None:
        sent = [(str(n), str(v)) for n, v in headers.get_all() if str(n).lower() != _BY_SERVER]
        self.response.begin(int(start_line.code), [(n.encode("latin-1"), v.encode("utf-8")) for n, v in sent])
        self._add(chunk)

    def _add(self, chunk: Any) -> None:
        if chunk:
            self.response.add(bytes(chunk))

    def leave(self) -> None:
        """Note that the handler has returned."""
        raise NotImplementedError


class RecordedExchange(Exchange):
    """Records one request; passes everything on to the server's connection."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._connection = connection
        self._body: ReceivedBody | None = None
        self._is_left = self._is_taken = False
        self._is_shared = False
        self.run: UnitRun | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    @contextmanager
    def inside(self) -> Iterator[None]:
        if self.run is None:
            yield
            return
        with factory.inside_unit(self.run):
            yield

    def begin(self, start_line: Any, headers: Any) -> None:
        """Open the unit of a request whose headers have arrived."""
        self.run = factory.open_unit()
        if self.run is None:
            return
        self._body = ReceivedBody(self.run)
        note_units(find_port(self._connection) or None)
        described = _describe(start_line, headers, self._connection)
        raw = [(n.encode("latin-1"), v.encode("latin-1", "replace")) for n, v in headers.get_all()]
        with self.inside():
            caller.look_at_caller(self.run, raw, lambda: described)
            read_in(REQUEST, described)

    def add(self, chunk: bytes) -> None:
        """Note a part of the body."""
        if self._body is not None:
            self._body.add(bytes(chunk), is_last=False)

    def end_body(self) -> None:
        """Note that the whole body has arrived."""
        if self._body is not None:
            self._body.note()

    def write_headers(self, start_line: Any, headers: Any, chunk: Any = None) -> Any:
        """Begin the response."""
        self._note(self._begin, start_line, headers, chunk)
        return self._connection.write_headers(start_line, headers, chunk)

    def write(self, chunk: Any) -> Any:
        """Write a part of the response."""
        self._note(self._add, chunk)
        return self._connection.write(chunk)

    def finish(self) -> Any:
        """Complete the response."""
        self._note(self._complete)
        return self._connection.finish()

    def _note(self, make: Any, *args: Any) -> None:
        run = self.run
        if run is None:
            return
        self.is_of_another()
        guard.guarded(PART, make, *args)

    def hole(self, reason: str) -> None:
        if self.run is not None:
            self.run.hole(reason)

    def is_of_another(self) -> bool:
        if active_run() is self.run:
            return False
        if not self._is_shared:
            self._is_shared = True
            self.hole(_OF_ANOTHER)
        return True

    def _complete(self) -> None:
        if not self.is_gone:
            self.response.is_complete = True
            with self.inside():
                self.response.record(self.raised)
        self._end_if_over()

    def set_close_callback(self, callback: Any) -> None:
        """Pass on that the client has gone, once it is recorded."""

        def close() -> None:
            self.lose()
            with self.inside():
                callback()

        self._connection.set_close_callback(None if callback is None else close)

    def detach(self) -> Any:
        """Give the connection to a handler."""
        self._is_taken = True
        if not self.is_session:
            self.hole(TAKEN_OVER)
        return self._connection.detach()

    def lose(self) -> None:
        """Note that the client has gone."""
        guard.guarded(PART, self._lose)

    def _lose(self) -> None:
        if self.run is None or self.is_gone or self.response.is_complete:
            return
        self.is_gone = True
        with self.inside():
            if self._body is not None:
                self._body.note(is_complete=False)
            read_in(DISCONNECT, {PARTS_TAKEN: self.response.parts})
        self._end_if_over()

    def leave(self) -> None:
        self._is_left = True
        guard.guarded(PART, self._end_if_over)

    def _end_if_over(self) -> None:
        is_over = self.response.is_complete or self.is_gone or self._is_taken
        if self.run is None or not self._is_left or not is_over:
            return
        with self.inside():
            if not self.response.is_complete:
                self.response.record(self.raised)
            if self.is_session:
                record_end(self.raised)
        is_ok = self.raised is None
        self.run.end(Outcome.CANCELLED if self.is_gone else Outcome.OK if is_ok else Outcome.ERROR)


class Received:
    """Between a server's connection and its application: records what comes in."""

    def __init__(self, delegate: Any, exchange: RecordedExchange) -> None:
        self._delegate, self._exchange = delegate, exchange

    def headers_received(self, start_line: Any, headers: Any) -> Any:
        """Begin the request."""
        guard.guarded(PART, self._exchange.begin, start_line, headers)
        with self._exchange.inside():
            return self._delegate.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Any:
        """Pass on a part of the body."""
        with self._exchange.inside():
            guard.guarded(PART, self._exchange.add, chunk)
            return self._delegate.data_received(chunk)

    def finish(self) -> Any:
        """Let the application work on the whole request."""
        with self._exchange.inside():
            guard.guarded(PART, self._exchange.end_body)
            return self._delegate.finish()

    def on_connection_close(self) -> Any:
        """Pass on that the client has gone before its request was complete."""
        self._exchange.lose()
        with self._exchange.inside():
            return self._delegate.on_connection_close()


def _describe(start_line: Any, headers: Any, connection: Any) -> dict[str, Any]:
    """Describe a request: the parts that come from the client or the connection's addresses."""
    path, mark, query = start_line.path.partition("?")
    found: dict[str, Any] = {"method": start_line.method, "path": path, "raw_path": path}
    if mark:
        found["query_string"] = query
    found |= {"http_version": start_line.version.removeprefix("HTTP/"), "scheme": connection.context.protocol}
    found["headers"] = [{str(n).lower(): str(v)} for n, v in headers.get_all()]
    for name, address in (("client", connection.context.address), ("server", _find_address(connection))):
        if isinstance(address, (tuple, str)) and address:
            found[name] = address if isinstance(address, str) else list(address)
    return found


def _find_address(connection: Any) -> Any:
    socket = getattr(getattr(connection, "stream", None), "socket", None)
    return None if socket is None else socket.getsockname()


def find_port(connection: Any) -> int:
    """Return the port that a connection came in at; 0 if it has none."""
    address = _find_address(connection)
    return int(address[1]) if isinstance(address, tuple) else 0
