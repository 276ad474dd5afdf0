"""Ports of loopback that this process itself serves."""

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
"""Those of them that this process has asked itself."""
_of_units: set[int] = set()
"""Those whose requests are runs of their own: who asks there is another run."""
_native: set[int] = set()
"""Ports that a server below the interpreter listens at: asking it is a call like any other, where calls are known."""


def note_served(port: int) -> None:
    """This process listens at a port; of more than PORTS_MAX none is kept."""
    if len(_ports) < PORTS_MAX:
        _ports.add(port)


def serves() -> bool:
    """Whether this process serves any port of loopback."""
    return bool(_ports)


def is_own(host: str, port: int | None) -> bool:
    """Whether a server of this process listens there; only its loopback addresses are looked at."""
    return bool(_ports) and port in _ports and host.strip("[]").lower() in _LOOPBACK


def note_native(port: int) -> None:
    """A server below the interpreter listens at a port; of more than PORTS_MAX none is kept."""
    if len(_native) < PORTS_MAX:
        _native.add(port)


def connects_to_own(host: str, port: int | None) -> bool:
    """`asks_own` for a connection of which nobody knows what it asks."""
    if port in _native and host.strip("[]").lower() in _LOOPBACK:
        _asked.add(port)
        return True
    return asks_own(host, port)


def note_units(port: object) -> None:
    """A request that came in at a port is a run of its own, and so are all others there."""
    if isinstance(port, str) and port.isdecimal():
        port = int(port)
    if isinstance(port, int) and port in _ports:
        _of_units.add(port)


def asks_own(host: str, port: int | None) -> bool:
    """`is_own` for a request that is about to be made there; `was_asked` knows of it from now on.

    Not where requests are runs of their own: to the one that asks, the answer comes from outside.
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
    """The member of a manifest that says that this process is a client of its own server."""
    return {_MEMBER: True} if _asked else {}


def stated(manifest: Mapping[str, object]) -> bool:
    """Whether a manifest says so."""
    return manifest.get(_MEMBER) is True


def is_here(name: str) -> bool:
    """Whether looking a name up asks nobody: this machine's own names, and addresses."""
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
    """Know of no server any more: another agent may run in this process now, or this is a forked one."""
    _ports.clear()
    _asked.clear()
    _of_units.clear()
    _native.clear()
