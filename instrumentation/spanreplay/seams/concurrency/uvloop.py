"""Seam: uvloop's event loop, which is not one of asyncio's.

Records nothing; names the lane of each task, and notes the connections that it makes without Python's sockets. uvloop
keeps its own time and does not reveal its next callback, so a replay runs the program on asyncio's own loop, which
passes for uvloop's.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from spanreplay.model import guard, ids
from spanreplay.runtime.agent_patches import TypeMembers
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.own_ports import note_native
from spanreplay.runtime.run import active_run, root_lane_of_active_run
from spanreplay.seams.concurrency import lanes_of_work
from spanreplay.seams.machine.outside import leaks
from spanreplay.seams.machine.outside.connections import note_leaking, see_written
from spanreplay.seams.machine.outside.watch import describe_address
from spanreplay.seams.machine.sockets import streams

_TRANSPORTS: Final = ("UVStream", "_SSLProtocolTransport")
_WRITES: Final = frozenset({"write", "writelines"})


def install(module: Any, patches: Patches) -> None:
    """Patch `uvloop.Loop`."""
    lanes_of_work.wrap_create_task(patches, module.Loop, root_lane_of_active_run)
    real = module.Loop.__new__

    def make(cls: type, *args: Any, **kwargs: Any) -> Any:
        run = active_run()
        if run is not None and not run.resolver.connects:
            return type("Loop", (_StandIn,), {"_passes_for": cls})()
        return real(cls, *args, **kwargs)

    patches.replace(module.Loop, "__new__", staticmethod(make))
    for name, find in _CONNECTS.items():
        patches.wrap(module.Loop, name, partial(_connect, name, find))
    patches.wrap(module.Loop, "create_server", _create_server)
    _watch_writes(module.loop, patches)


def _watch_writes(module: Any, patches: Patches) -> None:
    """Watch the transports of connections, where this interpreter lets members of their classes be replaced."""
    for owner in filter(None, (getattr(module, name, None) for name in _TRANSPORTS)):
        for name in _WRITES.intersection(vars(owner)):
            with contextlib.suppress(RuntimeError):
                patches.replace(TypeMembers(owner), name, _watched(vars(owner)[name]))


def _watched(real: Callable[..., None]) -> Callable[..., None]:
    def write(self: Any, *args: Any) -> None:
        see_written(self)
        real(self, *args)

    write.__name__ = write.__qualname__ = real.__name__
    write.__doc__ = real.__doc__
    return write


def _find_host(args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    host, port = (_find(args, kwargs, at, name) for at, name in ((1, "host"), (2, "port")))
    return None if host is None else (host, port)


def _find(args: Sequence[Any], kwargs: Mapping[str, Any], at: int, name: str) -> Any:
    return args[at] if len(args) > at else kwargs.get(name)


_CONNECTS: Final[Mapping[str, Callable[[Sequence[Any], Mapping[str, Any]], object]]] = {
    "create_connection": _find_host,
    "create_unix_connection": lambda args, kwargs: _find(args, kwargs, 1, "path"),
    "sock_connect": lambda args, kwargs: _find(args, kwargs, 1, "address"),
}
"""Methods that make a connection → the address in their arguments; None if there is none."""


def _connect(name: str, find: Callable[..., object], wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
    code = guard.guarded("watching uvloop", _note, name, find, args, kwargs)
    connecting = wrapped(*args, **kwargs)
    return _follow(connecting, code) if code and name != "sock_connect" else connecting


async def _follow(connecting: Awaitable[Any], code: str) -> Any:
    """Await a connection, and note it for later units that use it."""
    made = await connecting
    guard.guarded("watching uvloop", _note_made, made[0].get_extra_info("socket"), code)
    return made


def _note_made(sock: Any, code: str) -> None:
    note_leaking(sock, sock.getpeername(), code)


def _note(name: str, find: Callable[..., object], args: Any, kwargs: Any) -> str:
    """Note a connection about to be made, and return the agent's place if it is a leak."""
    if leaks.leaking_run() is None or (name != "sock_connect" and streams.hears(None, sys._getframe(2))):
        return ""
    address = find(args, kwargs)
    detail = "" if address is None else describe_address(address)
    is_leak = detail and leaks.note("socket", f"uvloop.Loop.{name}", detail)
    return ids.find_caller(3) if is_leak else ""


async def _create_server(wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
    server = await wrapped(*args, **kwargs)
    for sock in server.sockets:
        address = sock.getsockname()
        if isinstance(address, tuple) and active_run() is not None:
            note_native(address[1])
    return server


class _StandIn(asyncio.SelectorEventLoop):
    """An asyncio loop that `isinstance` takes for an instance of uvloop's class, as `uvloop.run` checks."""

    _passes_for: type = asyncio.SelectorEventLoop

    @property  # type: ignore[misc]  # a method of `object`, which mypy takes for an attribute
    def __class__(self) -> type:
        return self._passes_for
