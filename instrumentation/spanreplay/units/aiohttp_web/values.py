"""A request of aiohttp's server as values that can be recorded, and a connection without a client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from spanreplay.units.asgi_messages import read_headers

__all__ = ["IS_BODY_HERE", "Connection", "build_head", "describe_request", "encode_headers"]

_CLIENT, _SERVER, _SCHEME = "client", "server", "scheme"
_PATH, _RAW_PATH, _QUERY = "path", "raw_path", "query_string"
_METHOD, _VERSION, _HEADERS = "method", "http_version", "headers"
IS_BODY_HERE: Final = "is_body_here"
"""Member of `http:request`: the whole body had arrived before the application was called."""


def describe_request(request: Any) -> dict[str, Any]:
    """Describe a request: the parts that come from the client or the connection's addresses."""
    message = request._message
    raw_path, mark, query = message.path.partition("?")
    found: dict[str, Any] = {_METHOD: message.method, _PATH: request.path, _RAW_PATH: raw_path}
    if mark:
        found[_QUERY] = query
    found[_VERSION] = f"{message.version.major}.{message.version.minor}"
    found[_HEADERS] = [{n.decode("latin-1"): v.decode("latin-1")} for n, v in message.raw_headers]
    transport = request.transport
    if transport is not None:
        found[_SCHEME] = "http" if transport.get_extra_info("sslcontext") is None else "https"
        for name, asked in ((_CLIENT, "peername"), (_SERVER, "sockname")):
            address = transport.get_extra_info(asked)
            if isinstance(address, (tuple, list, str)) and address:
                found[name] = address if isinstance(address, str) else list(address)
    return found


def build_head(described: Mapping[str, Any]) -> bytes:
    """Return the request line and headers as the client sent them, for the server's parser."""
    query = f"?{described[_QUERY]}" if _QUERY in described else ""
    line = f"{described[_METHOD]} {described[_RAW_PATH]}{query} HTTP/{described[_VERSION]}\r\n"
    headers = b"".join(name + b": " + value + b"\r\n" for name, value in read_headers(described[_HEADERS]))
    return line.encode("utf-8", "surrogateescape") + headers + b"\r\n"


def encode_headers(headers: Mapping[str, str], omitted: str) -> Iterable[tuple[bytes, bytes]]:
    """Yield a response's headers as they are sent, except the omitted one, which the server set."""
    for name, value in headers.items():
        if name.lower() != omitted:
            yield str(name).encode("utf-8", "surrogateescape"), str(value).encode("utf-8", "surrogateescape")


class Connection(asyncio.Transport):
    """A transport whose client is a recording: written data is discarded."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        places = {"peername": described.get(_CLIENT), "sockname": described.get(_SERVER)}
        known = {name: tuple(each) if isinstance(each, list) else each for name, each in places.items()}
        super().__init__({**known, "sslcontext": object() if described.get(_SCHEME) == "https" else None})
        self._is_closing = False

    def write(self, data: Any) -> None:
        """Discard the server's data."""

    def writelines(self, list_of_data: Any) -> None:
        """Discard the server's data."""

    def is_closing(self) -> bool:
        """Whether the server has closed the connection."""
        return self._is_closing

    def close(self) -> None:
        """Close the connection for the server."""
        self._is_closing = True

    abort = close

    def pause_reading(self) -> None:
        """No-op: no data arrives by itself."""

    def resume_reading(self) -> None:
        """No-op: no data arrives by itself."""
