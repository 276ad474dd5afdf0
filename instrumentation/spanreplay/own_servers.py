"""Servers that the agent's process runs itself: asking them is no boundary, since what they do happens in this process.

Known by the ports that its sockets listen on. A server below the interpreter (uvloop, grpc) is not seen.
"""

from __future__ import annotations

from typing import Any, Final

from spanreplay._patch import Patches
from spanreplay.run import active_run

PORTS_MAX: Final = 10_000
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})  # noqa: S104 -- compared, not bound
_ports: set[int] = set()


def is_own(host: str, port: int | None) -> bool:
    """Whether a server of this process listens there; only its loopback addresses are looked at."""
    return bool(_ports) and port in _ports and host.strip("[]").lower() in _LOOPBACK


def forget() -> None:
    """Know of no server any more: another agent may run in this process now, or this is a forked one."""
    _ports.clear()


def install(module: Any, patches: Patches) -> None:
    """Patch `socket`."""

    def listen(wrapped: Any, sock: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        if active_run() is not None and sock.family in (module.AF_INET, module.AF_INET6) and len(_ports) < PORTS_MAX:
            _ports.add(sock.getsockname()[1])
        return result

    patches.wrap(module.socket, "listen", listen)
