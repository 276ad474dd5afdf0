"""One request of Sanic's own server: the data between its connection and its application.

    http:request    (read)    method, path, query, headers, addresses
    http:body       (read)    the body, once its last part has been read
    http:disconnect (read)    the client went away before the response was complete
    http:cancelled  (read)    the server cancels the application
    http:response   (write)   status, headers and body, before the last part is sent or when the application is done

A replay uses the real server's code: it parses the recorded lines, and what it writes is discarded.
Recording fails open: an error in this module is counted, and the application still gets the client's data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from spanreplay.model import guard
from spanreplay.model.call import Outcome
from spanreplay.runtime.lanes import Lane, inside_lane
from spanreplay.runtime.process.own_ports import note_units
from spanreplay.runtime.run import active_run
from spanreplay.units import caller, factory
from spanreplay.units.asgi_websocket import record_end
from spanreplay.units.http_exchange import CANCELLED, DISCONNECT, PART, REQUEST, ReceivedBody, Response, read_in
from spanreplay.units.sanic_web.session import Session
from spanreplay.units.unit_run import UnitRun

__all__ = ["IS_LATE", "PARTS_TAKEN", "Exchange", "RecordedExchange"]

PARTS_TAKEN: Final = "parts"
"""Member of the result of `http:disconnect`: how many parts of the response the application had written."""
IS_LATE: Final = "is_late"
"""Member of the result of `http:cancelled`: the application has taken longer than the server allows."""
_SERVER_ERROR: Final = 500
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_OF_ANOTHER: Final = "another request, or the process itself, wrote to this one's client: a replay does not do that"


class Exchange:
    """One request. Base of recording and replay."""

    def __init__(self, http: Any, lane: Lane) -> None:
        self.http = http
        self.lane = lane
        self.response = Response()
        self.raised: BaseException | None = None
        """An application's exception that the server turns into a response."""
        self.session: Session | None = None
        self.is_gone = False
        self._stated: BaseException | None = None
        self._has_begun = self._is_chunked = False

    def inside(self) -> AbstractContextManager[object]:
        """A block whose calls belong to the exchange, in any task or callback."""
        return inside_lane(self.lane)

    def note(self, make: Callable[..., object], *args: object) -> None:
        """Make the exchange's own calls."""
        make(*args)

    def hole(self, reason: str) -> None:
        """Note that the recording is incomplete."""

    async def work(self, handle: Callable[[Any], Awaitable[None]], request: Any) -> None:
        """Let the application work on the request."""
        with self.inside():
            await handle(request)

    async def read(self, read: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        """Read a part of the body."""
        return await read()

    def fail(self, raised: BaseException) -> None:
        """Note an exception that the server turns into a response."""
        if getattr(raised, "status_code", _SERVER_ERROR) >= _SERVER_ERROR:
            self.raised = raised

    def send(self, wire: bytes) -> None:
        """Note what the server sends."""
        if not self.is_gone and wire != _CONTINUE:
            self._add(wire.removeprefix(_CONTINUE))

    def _add(self, wire: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            head, _, wire = wire.partition(b"\r\n\r\n")
            line, *lines = head.split(b"\r\n")
            headers = [(name.lower(), value) for name, _, value in (each.partition(b": ") for each in lines)]
            self._is_chunked = (b"transfer-encoding", b"chunked") in headers
            self.response.begin(int(line.split(b" ", 2)[1]), headers)
        for part in _split(wire) if self._is_chunked else filter(None, (wire,)):
            if part:
                self.response.add(part)
            elif self._is_chunked:
                self._complete()
        answer = self.http.response
        length = None if answer is None else answer.headers.get("content-length")
        if length is not None and (self.http.head_only or self.response.size >= int(length)):
            self._complete()

    def _complete(self) -> None:
        if not self.response.is_complete:
            self.response.is_complete = True
            self.record()

    def record(self) -> None:
        """Record or compare the response, or the end of the session."""
        raised, self._stated = self.raised if self.raised is not self._stated else None, self.raised
        with self.inside():
            if self.session is None:
                self.response.record(raised)
            else:
                record_end(self.raised)

    def is_open(self) -> bool:
        """Whether the client still waits for something."""
        is_over = self.response.is_complete if self.session is None else self.session.is_closing
        return not (self.is_gone or is_over)

    def lose(self) -> None:
        """Note that the client has gone."""

    def end(self) -> None:
        """Note that the server has finished the request."""
        raise NotImplementedError


def _split(wire: bytes) -> list[bytes]:
    """Return the parts of chunks, which the server sends whole; the last one is empty."""
    parts = []
    while wire:
        size, _, rest = wire.partition(b"\r\n")
        length = int(size, 16)
        parts.append(rest[:length])
        wire = rest[length + 2 :]
    return parts


class RecordedExchange(Exchange):
    """Records one request."""

    def __init__(self, run: UnitRun, http: Any) -> None:
        super().__init__(http, run.root_lane)
        self._run = run
        self._body = ReceivedBody(run)
        self._is_shared = self._is_cancelled = False

    def inside(self) -> AbstractContextManager[object]:
        return factory.inside_unit(self._run)

    def note(self, make: Callable[..., object], *args: object) -> None:
        guard.guarded(PART, make, *args)

    def hole(self, reason: str) -> None:
        self._run.hole(reason)

    def begin(self, request: Any) -> None:
        """Record the start of the request."""
        described = _describe(self.http, request)
        note_units((described.get("server") or (None, None))[1])
        raw = [(n.encode("latin-1"), v.encode("latin-1")) for each in described["headers"] for n, v in each.items()]
        self._body.encoding = request.headers.get("content-encoding", "")
        with self.inside():
            caller.look_at_caller(self._run, raw, lambda: described)
            read_in(REQUEST, described)

    async def work(self, handle: Callable[[Any], Awaitable[None]], request: Any) -> None:
        with self.inside():
            guard.guarded(PART, self.begin, request)
            try:
                await handle(request)
            except asyncio.CancelledError:
                if not self.is_gone:
                    guard.guarded(PART, self._cancel)
                raise

    def _cancel(self) -> None:
        self._is_cancelled = True
        self._run.note_failure()
        read_in(CANCELLED, {IS_LATE: self.http.exception is not None})

    async def read(self, read: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        part = await read()
        http = self.http
        is_last = http.request_body is None or (http.request_body is True and not http.request_bytes_left)
        with self.inside():
            guard.guarded(PART, partial(self._body.add, part or b"", is_last=is_last))
        return part

    def _add(self, wire: bytes) -> None:
        if active_run() is not self._run and not self._is_shared and not self._is_by_server():
            self._is_shared = True
            self.hole(_OF_ANOTHER)
        super()._add(wire)

    def _is_by_server(self) -> bool:
        """Whether the connection's own task is writing, after the application has returned."""
        return asyncio.current_task() is self.http.protocol._task

    def lose(self) -> None:
        if not self.is_open():
            return
        self.is_gone = True
        with self.inside():
            self._body.note(is_complete=False)
            read_in(DISCONNECT, {PARTS_TAKEN: self.response.parts})

    def end(self) -> None:
        self.http.exchange = None
        try:
            with self.inside():
                self._body.note(is_complete=False)
            self.record()
        finally:
            is_cancelled = self.is_gone or self._is_cancelled
            is_ok = self.raised is None
            self._run.end(Outcome.CANCELLED if is_cancelled else Outcome.OK if is_ok else Outcome.ERROR)


def _describe(http: Any, request: Any) -> dict[str, Any]:
    """Describe a request: the parts that come from the client or the connection's addresses."""
    raw_path, mark, query = http.url.partition("?")
    found: dict[str, Any] = {"method": request.method, "path": unquote(raw_path), "raw_path": raw_path}
    if mark:
        found["query_string"] = query
    found |= {"http_version": request.version, "scheme": request.scheme}
    lines = request.head.decode("latin-1").split("\r\n")[1:]
    found["headers"] = [{name.lower(): value.lstrip()} for name, _, value in (each.partition(":") for each in lines)]
    for name, asked in (("client", "peername"), ("server", "sockname")):
        address = http.protocol.transport.get_extra_info(asked)
        if isinstance(address, (tuple, list, str)) and address:
            found[name] = address if isinstance(address, str) else list(address)
    return found
