"""Requests of aiohttp's own server: each one is a unit with the same calls as an ASGI request.

    http:request   (read)    the server's input: method, path, query, headers, addresses
    http:body      (read)    the body: at once if it has all arrived, else when the application reads its last part
    http:disconnect (read)   the client went away before the response was complete
    http:cancelled (read)    the server cancels the application
    http:response  (write)   status, headers and body, before the last part is sent or when the application is done
    http:raised    (pure)    an exception that the application raised after the response

A replay uses the real server: its parser gets the recorded lines, and its writer's output is discarded.
Recording fails open: an error in this module is counted, and the application still gets the server's data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from spanreplay.model import guard
from spanreplay.model.call import Outcome
from spanreplay.runtime.lanes import Lane, inside_lane
from spanreplay.runtime.process.own_ports import note_units
from spanreplay.runtime.run import active_run
from spanreplay.units import caller, factory
from spanreplay.units.aiohttp_web.values import IS_BODY_HERE, describe_request, encode_headers
from spanreplay.units.aiohttp_web.websocket import record_end
from spanreplay.units.http_exchange import CANCELLED, DISCONNECT, PART, REQUEST, ReceivedBody, Response, read_in
from spanreplay.units.unit_run import UnitRun

__all__ = ["PARTS_TAKEN", "Exchange", "RecordedExchange", "find_exchange", "find_exchange_of"]

T = TypeVar("T")
PARTS_TAKEN: Final = "parts"
"""Member of the result of `http:disconnect`: how many parts of the response the application had written."""
_INFORMATION: Final = "information"
"""An informational response before the actual one: `100 Continue`."""
_OF_ANOTHER: Final = "another request, or the process itself, wrote to this one's client: a replay does not do that"
_exchanges: dict[int, Exchange] = {}
"""Connection → its current request; a connection has one at a time."""


def find_exchange(protocol: Any) -> Exchange | None:
    """Return a connection's current request."""
    return _exchanges.get(id(protocol)) if _exchanges else None


def find_exchange_of(reader: Any) -> Exchange | None:
    """Return the request whose body a reader reads."""
    if not _exchanges:
        return None
    found = _exchanges.get(id(getattr(reader, "_protocol", None)))
    return found if found is not None and found.reader is reader else None


class Exchange:
    """One request: the data between server and application. Base of recording and replay."""

    is_recorded = False
    """Whether it is being recorded, not replayed."""

    def __init__(self, protocol: Any, lane: Lane) -> None:
        self.protocol = protocol
        self.lane = lane
        self.reader: Any = None
        self.response = Response()
        self.raised: BaseException | None = None
        """An application's exception that the server turns into a response."""
        self.is_gone = False
        self.is_websocket = False
        self.is_dated_by_server = False
        """Whether the server set the response's date, not the application."""
        self.answer: Any = None
        """The application's response, once its headers are being prepared."""
        self._has_begun = False
        self._stated: BaseException | None = None
        _exchanges[id(protocol)] = self

    def inside(self) -> AbstractContextManager[object]:
        """A block whose calls belong to the exchange, in any task or callback."""
        return inside_lane(self.lane)

    def note(self, make: Callable[..., object], *args: object) -> None:
        """Make the exchange's own calls."""
        make(*args)

    def hole(self, reason: str) -> None:
        """Note that the recording of the exchange is incomplete."""

    def is_of_another(self) -> bool:
        """Whether the code that is writing belongs to another request or the process, not to this application."""
        return False

    async def before_part(self) -> None:
        """Called before the application writes a part."""

    def read(self, wrapped: Callable[..., bytes], *args: Any) -> bytes:
        """Read from the reader."""
        return wrapped(*args)

    async def wait(self, wrapped: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Wait for more data when the reader is empty."""
        await wrapped(*args)

    def lose(self) -> None:
        """Called when the server learns that the connection is lost."""

    def watch(self, request: Any) -> None:
        """Observe the application's reads and writes from now on."""
        writer, self.reader = request._payload_writer, request._payload
        write_headers, write, write_eof = writer.write_headers, writer.write, writer.write_eof

        async def begin(status_line: str, headers: Any) -> Any:
            self.note(self._begin, status_line, headers)
            return await write_headers(status_line, headers)

        async def add(chunk: Any, *args: Any, **kwargs: Any) -> Any:
            await self.before_part()
            self.is_of_another()
            self.note(self._add, chunk)
            return await self._pass(write(chunk, *args, **kwargs))

        async def complete(chunk: Any = b"") -> Any:
            await self.before_part()
            self.note(self._complete, chunk)
            return await self._pass(write_eof(chunk))

        writer.write_headers, writer.write, writer.write_eof = begin, add, complete

    async def _pass(self, writing: Awaitable[T]) -> T:
        try:
            return await writing
        except ConnectionError:  # the server raises it when the client has disconnected
            self.lose()
            raise

    def _begin(self, status_line: str, headers: Any) -> None:
        self._has_begun = True
        omitted = "date" if self.is_dated_by_server else ""
        self.response.begin(int(status_line.split(None, 2)[1]), encode_headers(headers, omitted))

    def _add(self, chunk: Any) -> None:
        if not self._has_begun:
            self.response.add_other(_INFORMATION)
        elif len(chunk):
            self.response.add(bytes(chunk))

    def _complete(self, chunk: Any) -> None:
        if self.response.is_complete:
            return
        if len(chunk) and getattr(self.answer, "_compressed_body", None) is chunk:
            chunk = self.answer._body  # secrets can't be found after the server has compressed it
        if len(chunk):
            self.response.add(bytes(chunk))
        if not self.is_gone:
            self.response.is_complete = True
            self._record(None)

    def _record(self, raised: BaseException | None) -> None:
        found = raised or self.raised
        if self.is_websocket:
            record_end(self, found)
            return
        with self.inside():
            self.response.record(None if found is self._stated else found)
        self._stated = found

    def leave(self) -> None:
        """Free the connection for its next request."""
        _exchanges.pop(id(self.protocol), None)


class RecordedExchange(Exchange):
    """Records one request."""

    is_recorded = True

    def __init__(self, run: UnitRun, protocol: Any) -> None:
        super().__init__(protocol, run.root_lane)
        self._run = run
        self._body = ReceivedBody(run)
        self._is_reading = False
        self._is_shared = False
        self._is_cancelled_by_loss = bool(getattr(protocol._manager, "handler_cancellation", False))

    def inside(self) -> AbstractContextManager[object]:
        return factory.inside_unit(self._run)

    def note(self, make: Callable[..., object], *args: object) -> None:
        guard.guarded(PART, make, *args)

    def hole(self, reason: str) -> None:
        self._run.hole(reason)

    def is_of_another(self) -> bool:
        if active_run() is self._run:
            return False
        if not self._is_shared:
            self._is_shared = True
            self.hole(_OF_ANOTHER)
        return True

    def note_request(self, request: Any) -> None:
        """Record the start of the request."""
        address = None if request.transport is None else request.transport.get_extra_info("sockname")
        note_units(address[1] if isinstance(address, tuple) else None)
        described = describe_request(request)
        self._body.encoding = request._message.headers.get("Content-Encoding", "")
        caller.look_at_caller(self._run, request._message.raw_headers, lambda: described)
        parts = list(getattr(self.reader, "_buffer", ()))
        is_here = bool(parts) and self.reader.is_eof()
        read_in(REQUEST, {**described, IS_BODY_HERE: True} if is_here else described)
        for number, part in enumerate(parts if is_here else (), 1):
            self._body.add(part, is_last=number == len(parts))

    def read(self, wrapped: Callable[..., bytes], *args: Any) -> bytes:
        if self._is_reading or self._body.is_noted:
            return wrapped(*args)
        self._is_reading = True
        try:
            part = wrapped(*args)
        finally:
            self._is_reading = False
        self.note(self._note_part, part, self.reader._cursor)
        return part

    def _note_part(self, part: bytes, end: int) -> None:
        """Add a part that ends at this offset, without bytes already seen: the application may unread data."""
        part = part[max(0, self._body.size - (end - len(part))) :]
        is_last = self.reader.at_eof()
        if part or is_last:
            with self.inside():
                self._body.add(part, is_last=is_last)

    def lose(self) -> None:
        self.note(self._lose)

    def _lose(self) -> None:
        if self.is_gone or self.is_websocket or self.response.is_complete:
            return
        self.is_gone = True
        with self.inside():
            self._body.note(is_complete=False)
            read_in(DISCONNECT, {PARTS_TAKEN: self.response.parts})

    def end(self, raised: BaseException | None) -> None:
        """Record how the application finished the request, and end the unit."""
        is_by_server = isinstance(raised, asyncio.CancelledError)
        try:
            with self.inside():
                self._body.note(is_complete=False)
                if is_by_server and not (self.is_gone and self._is_cancelled_by_loss):
                    read_in(CANCELLED, None)
                self._record(raised)
        finally:
            if is_by_server and not self.is_gone:
                self._run.note_failure()
            is_cancelled = self.is_gone or is_by_server
            is_ok = raised is None and self.raised is None
            self._run.end(Outcome.CANCELLED if is_cancelled else Outcome.OK if is_ok else Outcome.ERROR)
