"""Ports: whether one is free, before anything is started that would need it."""

from __future__ import annotations

import socket

from spanreplay_collector.ports import resolve_host

__all__ = ["can_listen", "find_free_port", "join_address"]


def can_listen(host: str, port: int) -> bool:
    """Whether a server could listen on a port now; port 0 always. Raises: ConfigError for a foreign host."""
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
    """A port that nobody listens on at this moment."""
    family, address = resolve_host(host)
    with socket.create_server((address, 0), family=family) as probe:
        port: int = probe.getsockname()[1]
        return port


def join_address(host: str, port: int) -> str:
    """host:port, with the brackets that an IPv6 address needs."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"
