"""Open listening sockets, with a clear error when a port is taken."""

from __future__ import annotations

import contextlib
import errno
import socket

from spanreplay.model.errors import ConfigError, PortTaken

_PROBE_TIMEOUT_S = 0.5
_HINTS = {
    "OTLP/HTTP": "another collector may be running: use it, stop it, or choose another HTTP port",
    "OTLP/gRPC": (
        "another collector may be running, or Phoenix on its default gRPC port "
        "(set PHOENIX_GRPC_PORT=14317): stop it, or choose another gRPC port"
    ),
}


def resolve_host(host: str) -> tuple[socket.AddressFamily, str]:
    """Resolve a host to an address family and a numeric address. Raises: ConfigError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)[0]
    except OSError as exc:
        raise ConfigError(f"{host!r} is not an address of this machine: {exc.strerror}") from exc
    return family, str(address[0])


def open_listener(host: str, port: int, purpose: str) -> socket.socket:
    """Open a listening socket; port 0 takes a free port. Raises: PortTaken, ConfigError."""
    family, address = resolve_host(host)
    # A server on the same port but another address (all addresses, SO_REUSEPORT, IPv6) does not always
    # make bind fail, yet it would get some of our clients' requests.
    if port and _answers(family, address, port):
        raise _taken(host, port, purpose)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(1024)
        listener.setblocking(False)
    except OSError as exc:
        listener.close()
        if exc.errno == errno.EADDRINUSE:
            raise _taken(host, port, purpose) from exc
        raise ConfigError(f"cannot listen on {host}:{port} for {purpose}: {exc.strerror}") from exc
    return listener


def check_free(host: str, port: int, purpose: str) -> None:
    """Check that a server could listen on the port. Raises: PortTaken, ConfigError."""
    if port:
        open_listener(host, port, purpose).close()


def _answers(family: socket.AddressFamily, address: str, port: int) -> bool:
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104 compared, not bound
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        return probe.connect_ex((local, port)) == 0
    return False


def _taken(host: str, port: int, purpose: str) -> PortTaken:
    return PortTaken(f"port {port} on {host} is in use, {purpose} cannot listen there", hint=_HINTS[purpose])
