"""A recorded response as the standard library's own `http.client.HTTPResponse`: real parsing, no socket."""

from __future__ import annotations

import http.client
import io
from typing import Any, Protocol

from spanreplay.runtime.wire.http_reply import HttpReply

_PEEK_BYTES = 8192
_VERSIONS = {"HTTP/1.0": 10, "HTTP/1.1": 11, "HTTP/2": 20, "HTTP/2.0": 20}


class Source(Protocol):
    """The call that a stored body belongs to."""

    def end_of_body(self, reply: HttpReply) -> BaseException | None:
        """The exception raised after the last recorded chunk."""

    def wait_chunk(self, reply: HttpReply, number: int) -> None:
        """Block until a recorded chunk may go out."""

    def wait_end(self, reply: HttpReply) -> None:
        """Block until the recorded body may end."""

    def stream_over(self, reply: HttpReply) -> None:
        """The body was read to its end, or left."""

    def taken_over(self) -> BaseException:
        """The exception for a program that uses the connection itself."""


class _Wire(io.BytesIO):
    """The bytes on the wire, released chunk by chunk; `source` decides what happens after them."""

    def __init__(self, stored: bytes, starts: list[int], trailer: bytes, reply: HttpReply, source: Source) -> None:
        super().__init__(stored + trailer)
        self._size = len(stored) + len(trailer)
        self._starts = starts
        self._end_at = len(stored)
        self._is_ended = False
        self._released = 0
        self._reply = reply
        self._source = source

    @property
    def raw(self) -> Any:
        """The connection, which is not recorded; some programs go on to use it. Raises: ReplayMiss."""
        raise self._source.taken_over()

    def _release(self, asked: int | None) -> None:
        """Wait for the chunks that a read of this many bytes touches; raise if it goes beyond them."""
        at = self.tell()
        stop = self._size if asked is None or asked < 0 else at + asked
        while self._released < len(self._starts) and self._starts[self._released] < stop:
            self._source.wait_chunk(self._reply, self._released)
            self._released += 1
        if not self._is_ended and (stop > self._end_at or asked is None or asked < 0):
            self._is_ended = True
            self._source.wait_end(self._reply)
        if stop > self._size or (stop == self._size and (asked is None or asked < 0)):
            self._end()

    def _end(self) -> None:
        self._source.stream_over(self._reply)
        failure = self._source.end_of_body(self._reply) if self._reply.end != "complete" else None
        if failure is not None:
            raise failure

    def read(self, size: int | None = -1, /) -> bytes:
        self._release(size)
        return super().read(size)

    def read1(self, size: int | None = -1, /) -> bytes:
        left = self._size - self.tell()
        self._release(left if left and (size is None or size < 0 or size > left) else size)
        return super().read1(-1 if size is None else size)

    def readline(self, size: int | None = -1, /) -> bytes:
        self._release(1)  # lines are heads of chunks, which are stored whole
        return super().readline(size)

    def peek(self, size: int = 0, /) -> bytes:
        """The next bytes, without consuming them: as many as `io.BufferedReader` might show."""
        if self.tell() < self._size:
            self._release(1)
        return self.getvalue()[self.tell() : self.tell() + _PEEK_BYTES]

    def readinto(self, buffer: Any, /) -> int:
        self._release(len(buffer))
        return super().readinto(buffer)

    def close(self) -> None:
        self._source.stream_over(self._reply)
        super().close()


class _Socket:
    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def makefile(self, *args: Any, **kwargs: Any) -> _Wire:
        return self._wire


def rebuild_response(reply: HttpReply, method: str, source: Source) -> http.client.HTTPResponse:
    """The response that http.client would have made."""
    headers = http.client.HTTPMessage()
    for name, value in reply.headers:
        headers.add_header(name, value)
    is_chunked = (headers.get("transfer-encoding") or "").lower() == "chunked"
    is_whole = reply.end == "complete"
    stored, starts = bytearray(), []
    for _, piece in reply.chunks:
        starts.append(len(stored))
        stored += b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked and piece else piece
    trailer = b"0\r\n\r\n" if is_chunked and is_whole else b""
    socket: Any = _Socket(_Wire(bytes(stored), starts, trailer, reply, source))
    response: Any = http.client.HTTPResponse(socket, method=method)
    response.headers = response.msg = headers
    response.version = _VERSIONS.get(reply.http_version, 11)
    response.status = response.code = reply.status
    response.reason = reply.reason
    response.chunked, response.chunk_left = is_chunked, None
    # Without a length in its head a body lasts until the connection ends, which is a read of its own
    response.length = len(stored) if is_whole and not is_chunked and "content-length" in headers else None
    response.will_close = True
    if method.upper() == "HEAD" or response.length == 0:
        response.length = 0
        response._close_conn()
    found: http.client.HTTPResponse = response
    return found
