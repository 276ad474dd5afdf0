"""Check and find free ports before starting a server that needs them."""

from __future__ import annotations

import socket

from spanreplay_collector.ports import resolve_host

__all__ = ["can_listen", "find_free_port", "join_address"]


def can_listen(host: str, port: int) -> bool:
    """Whether a server could listen on a port now; port 0 is always free.

    Raises: ConfigError if the host can't be resolved.
    """
    family, address = resolve_host(host)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def find_free_port(host: str) -> int:
    """Return a port that is free at this moment."""
    family, address = resolve_host(host)
    with socket.create_server((address, 0), family=family) as probe:
        port: int = probe.getsockname()[1]
        return port


def join_address(host: str, port: int) -> str:
    """Join host and port, with brackets around an IPv6 address."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"
