"""WSGI applications: each request is a unit with the same calls as an ASGI request.

    http:request   (read)    the server's environ: method, path, query, headers, its own variables
    http:body      (read)    the body, once the application has read it to its end
    http:disconnect (read)   the server stops taking the response before its end: the client has disconnected
    http:response  (write)   status, headers and body, when the last part is taken or the application is done
    http:raised    (pure)    an exception that the application raised after the response

A response that is a list or tuple is recorded when the application returns it; any other is recorded part by part, as
the server takes it. Recording fails open: an error in this module is counted, and server and application still get
each other's data.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Final

from spanreplay.model import distributions as installed
from spanreplay.model import guard
from spanreplay.model.call import Outcome
from spanreplay.runtime.calls import chains
from spanreplay.runtime.lanes import inside_lane
from spanreplay.runtime.process.own_ports import note_units
from spanreplay.units import caller, factory
from spanreplay.units.http_exchange import DISCONNECT, PART, REQUEST, ReceivedBody, Response, read_in
from spanreplay.units.unit_run import UnitRun
from spanreplay.units.wsgi_environ import describe_environ, is_of_file

__all__ = ["Outgoing", "StartResponse", "WsgiApp", "WsgiUnits", "is_wsgi", "name_app"]

StartResponse = Callable[..., Callable[[bytes], object]]
WsgiApp = Callable[[MutableMapping[str, Any], StartResponse], Iterable[bytes]]
PARTS_TAKEN: Final = "parts"
"""Member of the result of `http:disconnect`: how many parts of the response the server had taken."""

_WRAPPERS_MAX: Final = 20
"""How many wrapping applications to search for a name."""


def is_wsgi(app: object) -> bool:
    """Whether an application is called as WSGI, not awaited as ASGI."""
    called = app if inspect.isroutine(app) else getattr(app, "__call__", app)  # noqa: B004 -- the method is looked at
    return not (inspect.iscoroutinefunction(called) or inspect.isclass(app))


def name_app(app: object) -> str:
    """Return a name for an application object: its own name, or the place of its definition in the agent's code.

    '' for an object of a library (Django's handler): then the program's name says more.
    """
    for _ in range(_WRAPPERS_MAX):
        stated = getattr(app, "import_name", "") or getattr(app, "name", "")
        if isinstance(stated, str) and stated:
            return stated
        inner = getattr(app, "app", None)
        if inner is None or inner is app:
            break
        app = inner
    named = app if inspect.isroutine(app) else type(app)
    file = getattr(sys.modules.get(named.__module__), "__file__", "") or ""
    return "" if installed.find_distribution(file) else f"{named.__module__}:{named.__qualname__}"


class WsgiUnits:
    """An application whose requests are each recorded as a run."""

    def __init__(self, app: WsgiApp, name: str) -> None:
        self._app = app
        self._name = name

    def __call__(self, environ: MutableMapping[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request through the application."""
        run = guard.guarded(PART, factory.open_unit, self._name)
        if run is None:
            return self._app(environ, start_response)
        exchange = _Recorded(run, environ)
        with factory.inside_unit(run):
            guard.guarded(PART, exchange.note_request)
            try:
                result = self._app(environ, exchange.outgoing.wrap(start_response))
            except BaseException as exc:
                guard.guarded(PART, exchange.end, exc)
                guard.guarded(PART, chains.strip, exc)
                raise
            if type(result) in (list, tuple):
                guard.guarded(PART, exchange.take_all, result)
                return result
        exchange.outgoing.response.is_cut_by_server = is_of_file(result, environ)
        return _SizedParts(exchange, result) if hasattr(result, "__len__") else _Parts(exchange, result)

    def __getattr__(self, name: str) -> Any:
        """Delegate other attributes to the application."""
        if name == "_app":  # asked while a copy is being made, before __init__
            raise AttributeError(name)
        return getattr(self._app, name)


class Outgoing:
    """Collects the response: from `start_response`, from `write`, and from the parts of the result."""

    def __init__(self, before_end: ReceivedBody | None = None) -> None:
        """`before_end`: the request's body, which ends when the response is complete."""
        self.response = Response()
        self._received = before_end
        self.is_gone = False
        """Whether writing failed because the client had disconnected."""
        self._length = -1

    def wrap(self, start_response: StartResponse) -> StartResponse:
        """Return a `start_response` that passes everything on to the server's."""

        def start(status: str, headers: list[tuple[str, str]], *exc_info: Any, **kwargs: Any) -> Callable[[bytes], Any]:
            write = start_response(status, headers, *exc_info, **kwargs)
            guard.guarded(PART, self._begin, status, headers)

            def tell(data: bytes) -> Any:
                guard.guarded(PART, self.response.add, data)
                try:
                    return write(data)
                except OSError:  # servers raise it when the client has disconnected
                    self.is_gone = True
                    raise

            return tell

        return start

    def _begin(self, status: str, headers: Iterable[tuple[str, str]]) -> None:
        pairs = [(str(name).encode("latin-1"), str(value).encode("latin-1")) for name, value in headers]
        self.response.begin(int(status.split(None, 1)[0]), pairs)
        lengths = [value for name, value in pairs if name.lower() == b"content-length"]
        self._length = int(lengths[0]) if lengths and lengths[0].isdigit() else -1

    def add(self, part: bytes) -> None:
        """Add a part; the response is complete when its Content-Length is reached. Raises: ReplayMiss."""
        self.response.add(part)
        if self.response.size == self._length:
            self.complete()

    def complete(self) -> None:
        """Mark the response complete and record it. Raises: ReplayMiss."""
        self.response.is_complete = True
        self.record(None)

    def record(self, raised: BaseException | None) -> None:
        """Record the response, after the rest of the request's body. Raises: ReplayMiss."""
        if self._received is not None:
            self._received.note(is_complete=False)
        self.response.record(raised)


class _Recorded:
    """Records one request: the data between server and application."""

    def __init__(self, run: UnitRun, environ: MutableMapping[str, Any]) -> None:
        self.run = run
        self._environ = environ
        self._body = ReceivedBody(run)
        self.outgoing = Outgoing(before_end=self._body)

    def note_request(self) -> None:
        """Record the start of the request."""
        note_units(self._environ.get("SERVER_PORT"))
        described = describe_environ(self._environ, os.environ)
        told = {name: self._environ.get(f"HTTP_{name.upper().replace('-', '_')}") for name in caller.find_names()}
        named = [(name.encode(), str(value).encode("latin-1", "replace")) for name, value in told.items() if value]
        caller.look_at_caller(self.run, named, lambda: described)
        self._body.encoding = str(self._environ.get("HTTP_CONTENT_ENCODING") or "")
        read_in(REQUEST, described)
        if "wsgi.input" in self._environ and (
            self._environ.get("CONTENT_LENGTH") or "HTTP_TRANSFER_ENCODING" in self._environ
        ):
            self._environ["wsgi.input"] = _Input(self._environ, self._body, self.run)

    def take_all(self, parts: Iterable[bytes]) -> None:
        """Record a response that the application returned as a whole."""
        for part in parts:
            self.outgoing.response.add(part)
        self.outgoing.complete()
        self.end(None)

    def end(self, raised: BaseException | None) -> None:
        """Record the end, when the application or the server is done, and end the unit."""
        response = self.outgoing.response
        is_gone = self.outgoing.is_gone or (raised is None and not response.is_complete)
        try:
            with inside_lane(self.run.root_lane):
                if is_gone:
                    read_in(DISCONNECT, {PARTS_TAKEN: response.parts})
                self.outgoing.record(None if self.outgoing.is_gone else raised)
        finally:
            is_head = self._environ.get("REQUEST_METHOD") == "HEAD"
            is_cancelled = (is_gone and not is_head) or not isinstance(raised, Exception | None)
            ended = Outcome.CANCELLED if is_cancelled else Outcome.OK if raised is None else Outcome.ERROR
            self.run.end(ended)


class _Input:
    """The server's body file, which records the bytes that the application reads."""

    def __init__(self, environ: Mapping[str, Any], body: ReceivedBody, run: UnitRun) -> None:
        self._file = environ["wsgi.input"]
        self._run = run
        self._body = body
        length = str(environ.get("CONTENT_LENGTH") or "")
        self._length = int(length) if length.isdigit() else -1

    def _took(self, part: bytes, *, is_end: bool) -> bytes:
        guard.guarded(PART, self._note, part, is_end)
        return part

    def _note(self, part: bytes, is_end: bool) -> None:
        with inside_lane(self._run.root_lane):
            self._body.add(bytes(part), is_last=is_end or self._body.size + len(part) == self._length)

    def read(self, *size: Any) -> bytes:
        """Read from the server's file."""
        part: bytes = self._file.read(*size)
        return self._took(part, is_end=not part or not size or size[0] is None or size[0] < 0)

    def readline(self, *size: Any) -> bytes:
        """Read a line from the server's file."""
        line: bytes = self._file.readline(*size)
        return self._took(line, is_end=not line)

    def readlines(self, *hint: Any) -> list[bytes]:
        """Read lines from the server's file."""
        lines: list[bytes] = self._file.readlines(*hint)
        self._took(b"".join(lines), is_end=not hint)
        return lines

    def __iter__(self) -> Iterator[bytes]:
        for line in self._file:
            yield self._took(line, is_end=False)
        self._took(b"", is_end=True)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._file, name)
        if name == "read1":
            return lambda *size: self._took(found(*size), is_end=False)
        if name in ("readinto", "readinto1"):
            return lambda buffer: self._fill(found, buffer)
        return found

    def _fill(self, read: Callable[[Any], int | None], buffer: Any) -> int | None:
        count = read(buffer)
        if count is not None:
            self._took(bytes(memoryview(buffer).cast("B")[:count]), is_end=not count)
        return count


class _Parts:
    """Iterates over the response's parts as the server takes them, and records each one."""

    def __init__(self, exchange: _Recorded, result: Iterable[bytes]) -> None:
        self._exchange = exchange
        self._result = result
        self._iterator: Iterator[bytes] | None = None
        self._is_over = False
        self._raised: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        exchange = self._exchange
        with factory.inside_unit(exchange.run):
            try:
                if self._iterator is None:
                    self._iterator = iter(self._result)
                part = next(self._iterator)
            except StopIteration:
                guard.guarded(PART, exchange.outgoing.complete)
                raise
            except BaseException as exc:
                self._raised = exc
                guard.guarded(PART, chains.strip, exc)
                raise
            guard.guarded(PART, exchange.outgoing.add, part)
        return part

    def close(self) -> None:
        """Close the response for the server, and end the unit."""
        is_over, self._is_over = self._is_over, True
        with factory.inside_unit(self._exchange.run):
            try:
                if hasattr(self._result, "close"):
                    self._result.close()
            finally:
                if not is_over:
                    guard.guarded(PART, self._exchange.end, self._raised)
                    self._raised = None  # its traceback refers to this


class _SizedParts(_Parts):
    """`_Parts` for a response with a length, which servers ask for to compute its size in bytes."""

    def __len__(self) -> int:
        return len(self._result)  # type: ignore[arg-type]  # it has a length
