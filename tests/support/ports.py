"""Ports of loopback servers."""

from __future__ import annotations

import socket
import time


def free_port() -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for_port(port: int, timeout_s: float = 30.0) -> None:
    """Return once somebody listens on 127.0.0.1:port. Raises: TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with socket.socket() as sock:
            sock.settimeout(0.2)
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise TimeoutError(f"nobody listens on port {port}")
