"""Denies this process every address except loopback: a test that needs the internet is broken."""

from __future__ import annotations

import ipaddress
import socket
import sys
from typing import Any

_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "", "testserver"})
_is_denied = False


class NetworkDenied(BaseException):
    """A test accessed the network; a `BaseException`, so that no retry loop hides it."""


def is_local(host: object) -> bool:
    """Whether an address or name stays on this machine; pure."""
    if host is None:
        return True
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host)
    if name.lower().rstrip(".") in _LOCAL_NAMES or name == socket.gethostname():
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _refuse_outside(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect":
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) and address else None
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        host = arguments[0]
    else:
        return
    if not is_local(host):
        raise NetworkDenied(f"{event} {host!r}: tests may use loopback only")


def deny() -> None:
    """Deny the network from now on; audit hooks can't be removed, so one is added only once."""
    global _is_denied
    if not _is_denied:
        _is_denied = True
        sys.addaudithook(_refuse_outside)
