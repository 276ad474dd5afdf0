"""What aiohttp's server gets of a request, as values that can be recorded, and its connection where no client is."""

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
"""Member of `http:request`: the whole body had come before the application was called."""


def describe_request(request: Any) -> dict[str, Any]:
    """The request, as far as it comes from the client or the addresses of its connection."""
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
    """The request's lines as its client has sent them, for the server's parser."""
    query = f"?{described[_QUERY]}" if _QUERY in described else ""
    line = f"{described[_METHOD]} {described[_RAW_PATH]}{query} HTTP/{described[_VERSION]}\r\n"
    headers = b"".join(name + b": " + value + b"\r\n" for name, value in read_headers(described[_HEADERS]))
    return line.encode("utf-8", "surrogateescape") + headers + b"\r\n"


def encode_headers(headers: Mapping[str, str], omitted: str) -> Iterable[tuple[bytes, bytes]]:
    """The headers of a response as they go out, but for one that is not the application's."""
    for name, value in headers.items():
        if name.lower() != omitted:
            yield str(name).encode("utf-8", "surrogateescape"), str(value).encode("utf-8", "surrogateescape")


class Connection(asyncio.Transport):
    """A connection whose client is a recording: what is written goes nowhere."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        places = {"peername": described.get(_CLIENT), "sockname": described.get(_SERVER)}
        known = {name: tuple(each) if isinstance(each, list) else each for name, each in places.items()}
        super().__init__({**known, "sslcontext": object() if described.get(_SCHEME) == "https" else None})
        self._is_closing = False

    def write(self, data: Any) -> None:
        """Take what the server sends."""

    def writelines(self, list_of_data: Any) -> None:
        """Take what the server sends."""

    def is_closing(self) -> bool:
        """Whether the server has closed it."""
        return self._is_closing

    def close(self) -> None:
        """The server is done with it."""
        self._is_closing = True

    abort = close

    def pause_reading(self) -> None:
        """Nothing comes by itself."""

    def resume_reading(self) -> None:
        """Nothing comes by itself."""
