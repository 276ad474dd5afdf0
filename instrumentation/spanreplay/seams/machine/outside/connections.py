"""Connections that outlive the run that opened them, such as those of a pool: a server's later requests use them.

A run that opens a connection outside every boundary has a leak there. Another run that sends through it opens nothing
and depends on it just as much.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from spanreplay.model import guard, ids
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.outside_io import is_library_log
from spanreplay.seams.machine.outside.leaks import leaking_run

__all__ = ["note_leaking", "see_sent", "see_written", "watch_tls"]

KNOWN_MAX: Final = 10_000
_known: Final[dict[int, tuple[object, str, set[str]]]] = {}
"""Descriptor → port or path of the peer, the place that opened the connection, and the runs known to use it."""


def note_leaking(sock: Any, address: Any, code: str = "") -> None:
    """Note that the agent's code opens a connection outside every boundary; only the first KNOWN_MAX are kept.

    What a server or a library opens by itself, such as a worker's connection to its broker, is left out: it uses that
    for itself while a unit of work runs.
    """
    run, code = leaking_run(), code or ids.find_caller(3)
    if run is not None and code and len(_known) < KNOWN_MAX:
        _known[sock.fileno()] = (_describe_end(address), code, {run.run_id})


def see_sent(sock: Any) -> None:
    """Note that data goes out through a connection, if another run opened it."""
    if _known:
        guard.guarded("watching a connection", _note_used, sock)


def see_written(transport: Any) -> None:
    """`see_sent` for a transport in native code."""
    if _known:
        guard.guarded("watching a connection", lambda: _note_used(transport.get_extra_info("socket")))


def _note_used(sock: Any) -> None:
    """Note, once for each run, that it sends through a connection that it did not open."""
    end, opened, runs = _known.get(sock.fileno(), (None, "", set()))
    run = None if end is None else leaking_run()
    if run is None or run.leaks is None or run.run_id in runs or is_library_log(sys._getframe(1)):
        return
    peer = sock.getpeername()
    if _describe_end(peer) != end:  # the descriptor's number belongs to another connection by now
        _known.pop(sock.fileno(), None)
        return
    runs.add(run.run_id)
    detail = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(end)
    run.leaks.add("connection", "socket.send", detail, ids.find_caller(4) or opened, is_hole=True)


def _describe_end(address: Any) -> object:
    """Return the port of an address, or its path: its host may be given by name."""
    if isinstance(address, tuple) and len(address) > 1:
        return address[1]
    return os.fsdecode(address) if isinstance(address, (str, bytes)) else None


def watch_tls(module: Any, patches: Patches) -> None:
    """Watch encrypted connections of `ssl`, which send past the methods of `socket`."""
    cls = module.SSLSocket
    real = cls.send

    def send(self: Any, data: Any, flags: int = 0) -> Any:
        see_sent(self)
        return real(self, data, flags)

    send.__qualname__, send.__doc__, send.__module__ = real.__qualname__, real.__doc__, real.__module__
    patches.replace(cls, "send", send)
