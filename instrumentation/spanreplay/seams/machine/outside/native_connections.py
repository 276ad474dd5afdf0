"""TCP connections of native code (ZeroMQ, Kafka, clients in Rust): no patch sees them made or used.

While one is open, the process has a socket that no Python code has connected. What goes through it is in no recording.
"""

from __future__ import annotations

import _socket
import importlib.machinery
import itertools
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from spanreplay.model import owners
from spanreplay.runtime.caller.caller import is_among
from spanreplay.runtime.process.outside_io import unwatched
from spanreplay.runtime.process.own_ports import is_own
from spanreplay.seams.machine.outside.devices import DESCRIPTORS_MAX

__all__ = ["find_native", "note_python", "set_baseline", "settled"]

SOCKETS_MAX: Final = 10_000
_DESCRIPTORS: Final = "/proc/self/fd"
_COVERED: Final = ("confluent_kafka", "eventlet", "gevent", "grpc", "psycopg", "psycopg2", "uvloop")
"""Modules that connect past `socket`, mostly for calls that seams record: whose connection it is can't be told."""
_OTHER: Final = ("", 0)
_fstat: Final = os.fstat
_scandir: Final = os.scandir

_settled: Final[set[int]] = set()
"""Inodes of sockets that need no further look: those that Python connected, and all that are no TCP connections."""
_native: Final[dict[int, tuple[int, str, int]]] = {}
"""Inode → own port, host and port of the peer."""
_listening: Final[set[int]] = set()
"""Ports at which this process has listened."""


def note_python(sock: Any) -> None:
    """Note that Python code connects a socket; only the first SOCKETS_MAX are kept."""
    _settle(_fstat(sock.fileno()).st_ino)


def set_baseline() -> None:
    """Leave out the connections that this process has at present: it has inherited them."""
    for descriptor, inode in _list_sockets():
        _look(descriptor)  # one at which it listens
        _settle(inode)


@contextmanager
def settled() -> Iterator[None]:
    """A block of a call whose native code may connect: the call's result is recorded, so it needs no further look."""
    before = {inode for _, inode in _list_sockets()}
    try:
        yield
    finally:
        for _, inode in _list_sockets():
            if inode not in before:
                _settle(inode)


def find_native() -> list[str]:
    """Return the addresses to which native code is connected; empty if that can't be told."""
    if len(_settled) >= SOCKETS_MAX or _socket.getdefaulttimeout() is not None:  # that would change the descriptors
        return []
    is_open = set()
    for descriptor, inode in _list_sockets():
        is_open.add(inode)
        if inode in _settled or inode in _native:
            continue
        found = _look(descriptor)
        if found is not None and found[1:] != _OTHER:
            _native[inode] = found
        elif found is not None:
            _settle(inode)
    for inode in [each for each in _native if each not in is_open]:
        del _native[inode]
    peers = [(host, port) for own, host, port in _native.values() if not _serves(own) and not _serves(port)]
    outside = [f"{host}:{port}" for host, port in peers]
    return [] if outside and _is_covered() else outside


def _serves(port: int) -> bool:
    """Whether this process listens at a port, or has listened there."""
    return port in _listening or is_own("localhost", port)


def _settle(inode: int) -> None:
    if len(_settled) < SOCKETS_MAX:
        _settled.add(inode)


def _list_sockets() -> list[tuple[int, int]]:
    """Return the descriptor and inode of each open socket, of the DESCRIPTORS_MAX lowest descriptors."""
    found = []
    try:
        with unwatched(), _scandir(_DESCRIPTORS) as entries:
            for each in itertools.islice(entries, DESCRIPTORS_MAX):
                try:
                    about = _fstat(int(each.name))
                except OSError:  # closed by now
                    continue
                if stat.S_ISSOCK(about.st_mode):
                    found.append((int(each.name), about.st_ino))
    except OSError:  # not on this system
        pass
    return found


def _look(descriptor: int) -> tuple[int, str, int] | None:
    """Return own port, host and port of the peer of a TCP connection; None for one that is not connected yet.

    Other sockets have no peer: _OTHER. The descriptor stays as it is, and open.
    """
    try:
        sock = _socket.socket(fileno=descriptor)
    except OSError:  # closed by now
        return None
    try:
        if sock.family not in (_socket.AF_INET, _socket.AF_INET6) or sock.type != _socket.SOCK_STREAM:
            return (0, *_OTHER)
        if sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_ACCEPTCONN):
            _listening.add(sock.getsockname()[1])
            return (0, *_OTHER)
        peer = sock.getpeername()
        return sock.getsockname()[1], str(peer[0]), peer[1]
    except OSError:
        return None
    finally:
        sock.detach()


def _is_covered() -> bool:
    """Whether native code is loaded that connects for calls that seams record, or for a tool that reports."""
    if any(name in sys.modules for name in _COVERED):
        return True
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return any(isinstance(f, str) and f.endswith(suffixes) and is_among(f, (owners.TELEMETRY,)) for f in files)
