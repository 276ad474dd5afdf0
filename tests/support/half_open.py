"""Half-open connections to loopback: opened, and then idle."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_POST: Final = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
BEGINNINGS: Final = {
    "silent": b"",
    "half_a_header": _POST,
    "half_a_preface": _PREFACE[:10],
    "no_settings": _PREFACE + b"\0\0\0\4\0\0\0\0\0",
    "half_a_body": _POST + b"Content-Length: 1000\r\n\r\nabc",
    "no_body": _POST + b"Content-Length: 60000000\r\n\r\n",
}
"""The bytes that a client sends before it goes silent."""
FILES_KEPT: Final = 500


def count_possible(wanted: int, per_connection: int = 2) -> int:
    """Return how many connections a process may open here if it holds both ends."""
    return min(wanted, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_KEPT) // per_connection)


@contextmanager
def open_connections(host: str, port: int, beginnings: list[bytes]) -> Iterator[list[socket.socket]]:
    """Open one connection per beginning and send that beginning on it."""
    with ExitStack() as opened:
        connections = []
        for beginning in beginnings:
            connection = opened.enter_context(socket.create_connection((host, port), timeout=60))
            connection.sendall(beginning)
            connections.append(connection)
        yield connections
