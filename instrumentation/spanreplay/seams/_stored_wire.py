"""A recorded response as the standard library's own `http.client.HTTPResponse`: real parsing, no socket."""

from __future__ import annotations

import http.client
import io
from collections.abc import Callable
from typing import Any

from spanreplay.seams.http_reply import HttpReply

_VERSIONS = {"HTTP/1.0": 10, "HTTP/1.1": 11, "HTTP/2": 20, "HTTP/2.0": 20}


class _Wire(io.BytesIO):
    """Bytes as they lie on the wire; reading behind them raises what `end` gives, if it gives anything."""

    def __init__(self, stored: bytes, end: Callable[[], BaseException | None]) -> None:
        super().__init__(stored)
        self._end = end

    def _check(self, is_short: bool) -> None:
        if is_short:
            failure = self._end()
            if failure is not None:
                raise failure

    def read(self, size: int | None = -1, /) -> bytes:
        left = len(self.getbuffer()) - self.tell()
        self._check(size is None or size < 0 or size > left)
        return super().read(size)

    def read1(self, size: int | None = -1, /) -> bytes:
        found = super().read1(-1 if size is None else size)
        self._check(not found and size != 0)
        return found

    def readline(self, size: int | None = -1, /) -> bytes:
        found = super().readline(size)
        self._check(not found)
        return found

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer)
        self._check(count < len(buffer))
        return count


class _Socket:
    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def makefile(self, *args: Any, **kwargs: Any) -> _Wire:
        return self._wire


def rebuild_response(
    reply: HttpReply, method: str, end: Callable[[], BaseException | None]
) -> http.client.HTTPResponse:
    """The response that http.client would have made; `end` says what is raised behind the recorded body."""
    headers = http.client.HTTPMessage()
    for name, value in reply.headers:
        headers.add_header(name, value)
    is_chunked = (headers.get("transfer-encoding") or "").lower() == "chunked"
    is_whole = reply.end == "complete"
    pieces = [chunk for _, chunk in reply.chunks if chunk]
    if is_chunked:
        stored = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        stored += b"0\r\n\r\n" if is_whole else b""
    else:
        stored = b"".join(pieces)
    wire = _Wire(stored, (lambda: None) if is_whole else end)
    socket: Any = _Socket(wire)
    response: Any = http.client.HTTPResponse(socket, method=method)
    response.headers = response.msg = headers
    response.version = _VERSIONS.get(reply.http_version, 11)
    response.status, response.reason = reply.status, reply.reason
    response.chunked, response.chunk_left = is_chunked, None
    response.length = len(stored) if is_whole and not is_chunked else None
    response.will_close = True
    if method.upper() == "HEAD" or response.length == 0:
        response.length = 0
        response._close_conn()
    found: http.client.HTTPResponse = response
    return found
