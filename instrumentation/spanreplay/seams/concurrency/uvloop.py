"""Seam: uvloop's event loop, which is not one of asyncio's.

Records nothing; names the lane of each task, and notes the connections that it makes without Python's sockets. uvloop
keeps its own time and does not reveal its next callback, so a replay runs the program on asyncio's own loop, which
passes for uvloop's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.own_ports import note_native
from spanreplay.runtime.run import active_run, root_lane_of_active_run
from spanreplay.seams.concurrency import lanes_of_work
from spanreplay.seams.machine.outside import leaks
from spanreplay.seams.machine.outside.watch import describe_address


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
    guard.guarded("watching uvloop", _note, name, find, args, kwargs)
    return wrapped(*args, **kwargs)


def _note(name: str, find: Callable[..., object], args: Any, kwargs: Any) -> None:
    if leaks.leaking_run() is None:
        return
    address = find(args, kwargs)
    detail = "" if address is None else describe_address(address)
    if detail:
        leaks.note("socket", f"uvloop.Loop.{name}", detail)


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
