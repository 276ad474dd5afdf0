"""Idle connections: how many may be open, and when they are closed.

granian stops accepting connections while a maximum number is open, and has no timeout for a connection that has
sent nothing, or half of an HTTP/2 preface. So the maximum is derived from the process's limit on open files, and
connections are closed once the kernel reports that neither side has sent anything for some time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import struct
import sys
from pathlib import Path
from typing import Final

from spanreplay_collector import limits

logger = logging.getLogger(__name__)

_IS_LINUX: Final = sys.platform == "linux"
_TCP_INFO: Final = struct.Struct("=8B9I4I")
"""struct tcp_info up to `tcpi_last_ack_recv`; the last four are ms since data sent, ACK sent, data and ACK received."""
_LAST_SENT, _LAST_RECEIVED = 17, 19


def raise_file_limit() -> int:
    """Raise this process's limit on open files to FILES_MAX, or as far as allowed; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.FILES_MAX if hard == resource.RLIM_INFINITY else min(limits.FILES_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limits.FILES_MAX if soft == resource.RLIM_INFINITY else min(soft, limits.FILES_MAX)


def count_connections_max(files_max: int) -> int:
    """How many connections may be open; at most half of the files are reserved for log, store and gRPC."""
    return max(files_max - limits.FILES_RESERVED, files_max // 2)


class IdleWatch:
    """Closes idle connections of one port; the timeout is shorter while many are open."""

    def __init__(self, port: int, connections_max: int) -> None:
        self._port = port
        self._connections_max = connections_max
        self._task: asyncio.Task[None] | None = None
        self.closed = 0

    def start(self) -> None:
        """Start watching; needs the running event loop. No-op except on Linux, which reports idle times."""
        if _IS_LINUX:
            self._task = asyncio.get_running_loop().create_task(self._watch(), name="spanreplay-idle")

    async def stop(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(limits.IDLE_SCAN_S)
            try:
                await asyncio.to_thread(self.close_idle)
            except Exception:
                logger.exception("cannot look for idle connections")

    def close_idle(self) -> int:
        """Close the connections that have been idle for too long; return how many were closed."""
        idle_ms = {fd: found for fd in _list_files() if (found := self._read_idle_ms(fd)) is not None}
        is_crowded = len(idle_ms) > self._connections_max * limits.IDLE_CROWD_SHARE
        patience_ms = 1000 * (limits.IDLE_CROWDED_S if is_crowded else limits.IDLE_S)
        closed = sum(self._close(fd, patience_ms) for fd, ms in idle_ms.items() if ms >= patience_ms)
        self.closed += closed
        return closed

    def _read_idle_ms(self, fd: int) -> int | None:
        """Milliseconds since either side sent data on a file; None if it is not a connection of our port."""
        try:
            looked_at = socket.socket(fileno=fd)
        except OSError:
            return None
        try:
            return self._idle_ms(looked_at)
        finally:
            looked_at.detach()

    def _idle_ms(self, connection: socket.socket) -> int | None:
        try:
            if connection.type != socket.SOCK_STREAM or connection.getsockname()[1] != self._port:
                return None
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return None
            info = _TCP_INFO.unpack(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))
        except (OSError, IndexError, struct.error):
            return None
        return int(min(info[_LAST_SENT], info[_LAST_RECEIVED]))

    def _close(self, fd: int, patience_ms: float) -> bool:
        # The descriptor may refer to another file by now. A duplicate always refers to the same file: check that
        # again, then shut it down; the owner reads end-of-file and closes.
        try:
            copy = socket.socket(fileno=os.dup(fd))
        except OSError:
            return False
        with copy:
            idle_ms = self._idle_ms(copy)
            if idle_ms is None or idle_ms < patience_ms:
                return False
            with contextlib.suppress(OSError):
                copy.shutdown(socket.SHUT_RDWR)
        return True


def _list_files() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]
