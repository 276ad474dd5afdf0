"""Connections to MongoDB that a replay never makes: pymongo's own class, above a socket that is none."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from spanreplay.seams.machine.databases.mongodb.servers import WIRE_VERSION, default_server, read_server

__all__ = ["hello_of", "is_stand_in", "make_socket", "show_server", "show_server_async"]


class _Done:
    """What a method without a result returns, to code that awaits it and to code that does not."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield  # makes this a generator


class _NoSocket:
    """The socket, or the protocol on an event loop, of a connection that was never made."""

    sock: Any = property(lambda self: self)
    get_conn: Any = property(lambda self: self)

    def gettimeout(self) -> None:
        """Return that there is no limit."""

    def settimeout(self, timeout: float | None) -> None:
        """Set nothing."""

    def close(self) -> Any:
        """Close nothing."""
        return _Done()

    def is_closing(self) -> bool:
        """Whether it is about to be closed: never."""
        return False

    def fileno(self) -> int:
        """Return the number of a closed descriptor."""
        return -1


def is_stand_in(connection: Any) -> bool:
    """Whether a connection was never made."""
    return isinstance(connection.conn, _NoSocket)


def make_socket() -> Any:
    """Return what a connection that is never made is built on."""
    return _NoSocket()


def hello_of(connection: Any) -> dict[str, Any]:
    """Return the server's answer to the handshake of a connection that is never made: that of the last selection."""
    text = getattr(connection.pool_ref(), "_spanreplay_server", "")
    return read_server(text)[1] if text else {"ok": 1, "isWritablePrimary": True, "maxWireVersion": WIRE_VERSION}


def _describe(topology: Any, text: str) -> tuple[tuple[str, Any], list[Any]]:
    """Return a server's address, and the descriptions that make a topology know it: its own, by way of a seed."""
    from pymongo.hello import Hello
    from pymongo.server_description import ServerDescription

    address, hello = read_server(text)
    topology._spanreplay_server = text
    known = topology.description.server_descriptions()
    first = address if address in known else next(iter(known))
    return address, [
        ServerDescription(each, Hello(hello), round_trip_time=0.0) for each in dict.fromkeys((first, address))
    ]


def _find(topology: Any, address: tuple[str, Any], text: str) -> Any:
    servers = topology._servers
    server = servers.get(address) or next(iter(servers.values()))
    server.pool._spanreplay_server = text
    return server


def show_server(topology: Any, text: str) -> Any:
    """Make a topology know a described server; returns pymongo's object for it."""
    topology.open()
    address, descriptions = _describe(topology, text or default_server(topology))
    for description in descriptions:
        topology.on_change(description)
    return _find(topology, address, text)


async def show_server_async(topology: Any, text: str) -> Any:
    """As `show_server`, on an event loop."""
    await topology.open()
    address, descriptions = _describe(topology, text or default_server(topology))
    for description in descriptions:
        await topology.on_change(description)
    return _find(topology, address, text)
