"""Ports of loopback servers."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

_FIRST: Final = 16_384
_END: Final = 32_768
"""No system assigns ephemeral ports below this one, so no other test's server gets one of these."""
_LAST_GIVEN: Final = Path(tempfile.gettempdir()) / f"spanreplay-test-port-{os.getuid()}"


def free_port() -> int:
    """Return an unused TCP port, for a server that can't choose one itself.

    All test processes share one counter, so a port is reused only after thousands of others.
    """
    fd = os.open(_LAST_GIVEN, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        given = int(os.pread(fd, 8, 0) or _FIRST)
        for _ in range(_END - _FIRST):
            given = given + 1 if given + 1 < _END else _FIRST
            if _is_free(given):
                os.pwrite(fd, b"%8d" % given, 0)
                return given
    finally:
        os.close(fd)
    raise OSError(f"no port from {_FIRST} to {_END - 1} is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def wait_for_port(port: int, timeout_s: float = 180.0) -> None:
    """Wait until a server listens on 127.0.0.1:port. Raises: TimeoutError."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while time.monotonic() < deadline:
        with socket.socket() as sock:
            sock.settimeout(0.2)
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        pause.wait(0.02)
    raise TimeoutError(f"nobody listens on port {port}")
