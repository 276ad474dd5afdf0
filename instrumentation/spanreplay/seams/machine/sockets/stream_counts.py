"""Part of the socket seam: whether all that passed through a connection was seen here.

Code that uses the descriptor of a socket (`os.read`, C libraries) passes the seam; the kernel counts its bytes.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from typing import Any, Final

from spanreplay.runtime.run import Run, active_run
from spanreplay.seams.machine.outside import leaks
from spanreplay.seams.machine.sockets.socket_calls import show
from spanreplay.seams.machine.sockets.streams import Stream, list_of_run

__all__ = ["note_end"]

_COUNTS_AT: Final = 120
"""Where `struct tcp_info` of Linux holds the bytes that the peer has acknowledged (and one for the connection itself)
and those that it has sent (https://github.com/torvalds/linux/blob/master/include/uapi/linux/tcp.h).
"""
_OPEN: Final = frozenset({1, 4, 5})
"""States (its first byte) in which the peer has not ended the connection, which counts as a byte."""
_COUNTS: Final = struct.Struct("=QQ")
_INFO_BYTES: Final = _COUNTS_AT + _COUNTS.size


def note_end(sock: Any, stream: Stream) -> None:
    """Note a connection of which more has passed than was seen here: native code used its descriptor."""
    run = active_run()
    if run is None or run.leaks is None or run.run_id != stream.run_id or not stream.is_counted:
        return
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or not hasattr(socket, "TCP_INFO") or sock.fileno() < 0:
        return
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _INFO_BYTES:
        return
    sent, received = _COUNTS.unpack_from(info, _COUNTS_AT)
    unread = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)))[0]
    end = int(info[0] not in _OPEN)
    if received - unread > stream.received + end or sent - 1 > stream.sent + 1:
        run.leaks.add("descriptor", "socket", show(stream.peer), stream.code, is_hole=True, seq=stream.seq)


def _note_open(run: Run) -> None:
    """Look at the connections that are open at the end of a run."""
    for sock, stream in list_of_run(run):
        note_end(sock, stream)


leaks.at_end.append(_note_open)
