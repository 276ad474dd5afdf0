"""Loopback ports that this process itself serves."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final

PORTS_MAX: Final = 10_000
_MEMBER: Final = "asks_itself"

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})  # noqa: S104 -- compared, not bound

_LOCAL_NAMES: Final = frozenset({"", "localhost", "localhost.localdomain", "ip6-localhost", "broadcasthost"})

_ports: set[int] = set()
_asked: set[int] = set()
"""The ports that this process has sent requests to itself."""
_of_units: set[int] = set()
"""The ports whose requests are separate runs, so that their client is another run."""
_native: set[int] = set()
"""Ports of servers below the interpreter: a request to one is an ordinary call, if such calls are known."""


def note_served(port: int) -> None:
    """Note that this process listens at a port; only the first PORTS_MAX are kept."""
    if len(_ports) < PORTS_MAX:
        _ports.add(port)


def serves() -> bool:
    """Whether this process serves any loopback port."""
    return bool(_ports)


def is_own(host: str, port: int | None) -> bool:
    """Whether a server of this process listens there; only its loopback addresses are considered."""
    return bool(_ports) and port in _ports and host.strip("[]").lower() in _LOOPBACK


def note_native(port: int) -> None:
    """Note that a server below the interpreter listens at a port; only the first PORTS_MAX are kept."""
    if len(_native) < PORTS_MAX:
        _native.add(port)


def connects_to_own(host: str, port: int | None) -> bool:
    """`asks_own` for a connection whose requests are unknown."""
    if port in _native and host.strip("[]").lower() in _LOOPBACK:
        _asked.add(port)
        return True
    return asks_own(host, port)


def note_units(port: object) -> None:
    """Note that an incoming request at a port is a run of its own, and so are all others there."""
    if isinstance(port, str) and port.isdecimal():
        port = int(port)
    if isinstance(port, int) and port in _ports:
        _of_units.add(port)


def asks_own(host: str, port: int | None) -> bool:
    """`is_own` for a request that is about to be made there; `was_asked` reports it from now on.

    False if requests there are runs of their own: for the requesting run, the answer comes from outside.
    """
    if port in _of_units or not is_own(host, port):
        return False
    if port is not None:
        _asked.add(port)
    return True


def was_asked(port: int) -> bool:
    """Whether this process is a client of its own server at a port."""
    return port in _asked


def for_manifest() -> dict[str, bool]:
    """The manifest member that says that this process is a client of its own server."""
    return {_MEMBER: True} if _asked else {}


def stated(manifest: Mapping[str, object]) -> bool:
    """Whether a manifest says so."""
    return manifest.get(_MEMBER) is True


def is_here(name: str) -> bool:
    """Whether looking a name up needs no other machine: this machine's own names, and addresses."""
    return names_itself(name) or is_address(name)


def names_itself(name: str) -> bool:
    """Whether this is a name of this machine, or its loopback address."""
    lower = name.lower().rstrip(".")
    if lower in _LOCAL_NAMES or lower in _LOOPBACK or lower.endswith(".localhost"):
        return True
    import socket

    return name == socket.gethostname()


def is_address(name: str) -> bool:
    """Whether this is an address and not a name."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def forget() -> None:
    """Forget all servers: another agent may run in this process now, or this is a forked one."""
    _ports.clear()
    _asked.clear()
    _of_units.clear()
    _native.clear()
