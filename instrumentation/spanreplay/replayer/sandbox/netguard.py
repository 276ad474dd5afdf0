"""Denies the network while a replay runs.

An audit hook sees every connection and every name lookup of the interpreter, whichever library makes it. Allowed are
those made inside a call that the plan runs live, and our own endpoint (the collector). Hooks can't be removed; this one
does nothing once the replay has ended. What a reporting tool tries by itself, or a handler of a library's log records,
fails as it would offline.
"""

from __future__ import annotations

import errno
import socket
import sys
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from spanreplay.replayer.resolve.session import Session
from spanreplay.replayer.sandbox.going_live import is_live
from spanreplay.runtime.caller.reporting import is_tool_alone
from spanreplay.runtime.process.outside_io import is_library_log
from spanreplay.runtime.process.own_ports import is_here, is_own
from spanreplay.runtime.processes import starting
from spanreplay.runtime.run import Run

_CONNECTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_LOOK_UPS = frozenset({"socket.getaddrinfo", "socket.gethostbyname"})
_NOBODY = "a replay connects to nobody"


class OwnEndpoint:
    """The only place that a replay may connect to; none if `url` is empty."""

    def __init__(self, url: str = "") -> None:
        parts = urlsplit(url)
        self.name = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._addresses: set[str] | None = None
        self._resolving = threading.local()

    @property
    def is_resolving(self) -> bool:
        """Whether this thread is currently looking up the endpoint."""
        return getattr(self._resolving, "is_now", False)

    def has(self, host: str, port: int) -> bool:
        """Whether an address belongs to the endpoint; looks up its name the first time."""
        if not self.name or port != self._port:
            return False
        if self._addresses is None:
            self._resolving.is_now = True
            try:
                self._addresses = _look_up(self.name, self._port)
            finally:
                self._resolving.is_now = False
        return host in self._addresses


@dataclass(frozen=True)
class _Guard:
    session: Session
    run: Run
    own: OwnEndpoint

    def check(self, event: str, args: tuple[Any, ...]) -> None:
        """Raise ReplayMiss in the caller if the event is denied in this replay."""
        if event in _CONNECTS:
            address = args[1] if len(args) > 1 else None
            if self.run.is_ended or address is None or is_live(self.run):
                return
            host, port = _split(address)
            if not self.own.has(host, port) and not is_own(host, port):
                if _is_report():
                    raise ConnectionRefusedError(errno.ECONNREFUSED, _NOBODY)
                raise self.session.deny_socket(f"{host}:{port}" if port else host)
            return
        name, own = _text(args[0]), self.own
        if self.run.is_ended or own.is_resolving or is_here(name) or name == own.name or is_live(self.run):
            return
        if _is_report():
            raise socket.gaierror(socket.EAI_NONAME, _NOBODY)
        # Offline, the lookup would fail with an ordinary error, which agents ignore
        raise self.session.deny_socket(f"{name}:{args[1]}" if len(args) > 1 and args[1] else name)


def _is_report() -> bool:
    """Whether a reporting tool, or a library's log, connects here: it fails as it would offline."""
    return is_tool_alone() or is_library_log(sys._getframe(1))


_guards: tuple[_Guard, ...] = ()
_is_hooked = False


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if (event in _CONNECTS or event in _LOOK_UPS) and not starting.is_now:  # multiprocessing contacts its forkserver
        for guard in _guards:
            guard.check(event, args)


def install(session: Session, run: Run, own: OwnEndpoint) -> None:
    """Deny the network until the run ends; each denial is noted and raises ReplayMiss in the caller."""
    global _guards, _is_hooked
    # One hook for all replays of the process: otherwise every audit event would pay for each of them
    _guards = (*(g for g in _guards if not g.run.is_ended), _Guard(session, run, own))
    if not _is_hooked:
        _is_hooked = True
        sys.addaudithook(_hook)


def remove(run: Run) -> None:
    """Forget a run whose replay is over."""
    global _guards
    _guards = tuple(g for g in _guards if g.run is not run)


def _text(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    return "" if value is None else str(value)


def _split(address: Any) -> tuple[str, int]:
    if isinstance(address, tuple) and len(address) >= 2 and isinstance(address[1], int):
        return str(address[0]), address[1]
    return _text(address), 0


def _look_up(host: str, port: int) -> set[str]:
    import socket

    try:
        found = {str(a[4][0]) for a in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError:
        found = set()
    return {host, *found}
