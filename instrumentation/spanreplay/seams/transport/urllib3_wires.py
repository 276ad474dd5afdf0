"""Wrappers between a urllib3 response and its reader, for urllib3 itself and for libraries built on it.

`TeeResponse` notes the bytes read; `rebuild_urllib3` rebuilds the recorded response: a real one over a stored body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import wrapt

from spanreplay.runtime.wire.http_body import Body
from spanreplay.runtime.wire.http_call import HttpCall
from spanreplay.runtime.wire.http_reply import HttpReply
from spanreplay.runtime.wire.stored_wire import rebuild_response

_HTTP_VERSIONS = {9: "HTTP/0.9", 10: "HTTP/1.0", 11: "HTTP/1.1", 20: "HTTP/2"}


def read_head(response: Any, url: str) -> HttpReply:
    """Status, reason and headers of a urllib3 response."""
    return HttpReply(
        status=int(response.status or 0),
        reason=response.reason or "",
        http_version=_HTTP_VERSIONS.get(response.version, "HTTP/1.1"),
        headers=[(str(k), str(v)) for k, v in response.headers.items()]
        if not hasattr(response.headers, "iteritems")
        else [(str(k), str(v)) for k, v in response.headers.iteritems()],
        url=url,
    )


class TeeResponse(wrapt.ObjectProxy):  # type: ignore[type-arg]  # generic only in wrapt's newer stubs
    """A urllib3 response that notes every read; ends its record exactly once."""

    def __init__(self, response: Any, body: Body) -> None:
        super().__init__(response)
        self._self_body: Body = body
        self._self_is_encoded = bool(response.headers.get("content-encoding"))

    def _self_read(self, read: Callable[[], Any], asked: int | None) -> Any:
        body = self._self_body
        found = body.attempt(self._self_note_partial, read)
        size = len(found or b"")
        is_sized = asked is not None and asked >= 0
        body.keep(found or b"", is_full=is_sized and size == asked)
        if not is_sized or (asked and size < asked) or (self.__wrapped__.isclosed() and not self._self_is_encoded):
            body.finish("complete", is_alone=not size)
        return found

    def _self_note_partial(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except BaseException as exc:
            self._self_body.keep(getattr(exc, "partial", b""))  # http.client passes the bytes it had with the exception
            raise

    def _self_walk(self, pieces: Iterator[bytes], asked: int | None) -> Iterator[bytes]:
        body = self._self_body
        while (piece := body.attempt(next, pieces, None)) is not None:
            body.keep(piece, is_full=len(piece) == asked)
            if self.__wrapped__.isclosed() and not self._self_is_encoded:
                body.finish("complete", is_alone=False)
            yield piece
        body.finish("complete")

    def read(self, amt: int | None = None, *args: Any, **kwargs: Any) -> Any:
        return self._self_read(lambda: self.__wrapped__.read(amt, *args, **kwargs), amt)

    def read1(self, amt: int | None = None, *args: Any, **kwargs: Any) -> Any:
        body = self._self_body
        found = body.attempt(partial(self.__wrapped__.read1, amt, *args, **kwargs))
        body.keep(found, is_full=len(found) == amt)
        if (not found and amt != 0) or (self.__wrapped__.isclosed() and not self._self_is_encoded):
            body.finish("complete", is_alone=not found)
        return found

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        found = self.read(len(view))
        view[: len(found)] = found
        return len(found)

    def readline(self, *args: Any) -> Any:
        body = self._self_body
        found = body.attempt(self.__wrapped__.readline, *args)
        body.keep(found, is_full=True)
        if not found:
            body.finish("complete")
        return found

    def readlines(self, *args: Any) -> list[bytes]:
        return list(iter(self.readline, b""))

    def stream(self, amt: int | None = 2**16, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        return self._self_walk(self.__wrapped__.stream(amt, *args, **kwargs), amt)

    def read_chunked(self, amt: int | None = None, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        return self._self_walk(self.__wrapped__.read_chunked(amt, *args, **kwargs), amt)

    def __iter__(self) -> Iterator[bytes]:
        lines: Iterator[bytes] = type(self.__wrapped__).__iter__(self)
        return lines

    @property
    def data(self) -> Any:
        """The whole body."""
        return self._self_read(lambda: self.__wrapped__.data, None)

    def json(self) -> Any:
        return type(self.__wrapped__).json(self)

    def close(self) -> None:
        self._self_body.finish("closed")
        self.__wrapped__.close()

    def release_conn(self) -> Any:
        self._self_body.finish("closed")
        return self.__wrapped__.release_conn()

    def drain_conn(self) -> None:
        self._self_body.finish("closed")
        self.__wrapped__.drain_conn()

    def __enter__(self) -> TeeResponse:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._self_body.finish("closed")


class _Identity:
    """Replaces a decoder: the recorded body is already decoded, its headers stay as they were."""

    has_unconsumed_tail = False

    def decompress(self, piece: bytes, max_length: int = -1) -> bytes:
        return piece

    def flush(self) -> bytes:
        return b""


def rebuild_urllib3(response_class: Any, header_class: Any, call: HttpCall, reply: HttpReply, **options: Any) -> Any:
    """Rebuild the recorded response as a `urllib3.HTTPResponse`; `options` are those of its constructor."""
    method = str(options.get("request_method") or "GET")
    stored = rebuild_response(reply, method, call)
    headers = header_class()
    for name, value in reply.headers:
        headers.add(name, value)
    response = response_class(
        body=stored,
        headers=headers,
        status=reply.status,
        version=stored.version,
        reason=reply.reason,
        original_response=stored,
        **{**options, "preload_content": False},
    )
    response.length_remaining = stored.length
    response.msg = stored.msg
    if hasattr(response, "version_string"):
        response.version_string = reply.http_version
    if response.headers.get("content-encoding"):
        response._decoder = _Identity()
    if options.get("preload_content", True):
        response._body = response.read(decode_content=options.get("decode_content", True))
    return response
