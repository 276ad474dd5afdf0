"""Part of the socket seam: connections that are made with asyncio's event loops or uvloop's.

Opening one is a call, everything written is a call, and so is everything that comes: data, the end, the loss of the
connection. Those calls are in a lane of the connection. A replay makes a transport without a socket, which delivers the
recorded events in their turn.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextvars import copy_context
from functools import partial
from typing import Any, Final

from spanreplay.model import ids
from spanreplay.runtime.calls.function_calls import call_async
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.outside import connections
from spanreplay.seams.machine.outside.watch import describe_address
from spanreplay.seams.machine.sockets import streams
from spanreplay.seams.machine.sockets.async_transports import (
    ASKED,
    FACTS,
    Heard,
    Link,
    ServedTransport,
    StreamTransport,
)
from spanreplay.seams.machine.sockets.socket_calls import describe, replace

_SHOWN: Final = ("ssl", "server_hostname", "local_addr", "family", "proto", "flags")


def _facts_of(transport: Any) -> dict[str, Any]:
    facts = {name: transport.get_extra_info(name) for name in FACTS}
    encrypted = transport.get_extra_info("ssl_object")
    if encrypted is not None:
        facts.update({name: getattr(encrypted, name)() for name in ASKED if hasattr(encrypted, name)})
    return {name: value for name, value in facts.items() if value is not None}


def _find_address(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if kwargs.get("sock") is not None:
        try:
            return kwargs["sock"].getpeername()
        except (OSError, AttributeError):
            return None
    if name == "create_unix_connection":
        return args[0] if args else kwargs.get("path")
    host, port = (args[at] if len(args) > at else kwargs.get(key) for at, key in ((0, "host"), (1, "port")))
    return None if host is None else (host, port)


def _show(address: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: kwargs[name] for name in _SHOWN if kwargs.get(name)}
    if "ssl" in shown:
        shown["ssl"] = True
    return {"to": address, **{name: int(v) if isinstance(v, int) else v for name, v in shown.items()}}


def _patch_opening(patches: Patches, cls: Any, name: str) -> None:
    real = getattr(cls, name)

    async def connect(self: Any, protocol_factory: Any, *args: Any, **kwargs: Any) -> Any:
        frame, address = sys._getframe(1), None
        if streams.hears(None, frame):
            address = _find_address(name, args, kwargs)
        run = active_run()
        if address is None or run is None or not describe_address(address):
            return await real(self, protocol_factory, *args, **kwargs)
        streams.insist(name, address)
        context, made = copy_context(), []

        async def live() -> dict[str, Any]:
            def make() -> Heard:
                link = context.copy().run(lambda: Link(run, address, protocol_factory()))
                heard = Heard(link)
                made.append(heard)
                return heard

            transport, _ = await real(self, make, *args, **kwargs)
            return _facts_of(transport)

        facts = await call_async(lambda: describe(name, _show(address, kwargs)), live)
        if made:
            transport: Any = made[-1].transport
            connections.note_leaking(transport.get_extra_info("socket"), address, ids.find_caller(2))
            return transport, transport.get_protocol()
        link = Link(run, address, protocol_factory())
        served = ServedTransport(self, link, facts)
        served.start()
        return served, link.protocol

    connect.__name__ = name
    replace(patches, cls, connect)


def _patch_tls(patches: Patches, cls: Any) -> None:
    real = cls.start_tls

    async def start_tls(self: Any, transport: Any, protocol: Any, sslcontext: Any, **kwargs: Any) -> Any:
        if not isinstance(transport, StreamTransport):
            return await real(self, transport, protocol, sslcontext, **kwargs)
        made: list[Any] = []

        async def live() -> dict[str, Any]:
            made.append(await transport.encrypt(partial(real, self), sslcontext, **kwargs))
            return _facts_of(made[0])

        stream = transport.link.stream
        shown = {"to": stream.peer, "server_hostname": kwargs.get("server_hostname")}
        is_call = streams.recording_run(stream) is not None
        facts = await (call_async(lambda: describe("start_tls", shown), live) if is_call else live())
        return transport.go_on(made[0] if made else None, facts, protocol)

    replace(patches, cls, start_tls)


def _patch_files(patches: Patches, cls: Any) -> None:
    real = cls.sendfile

    async def sendfile(
        self: Any, transport: Any, file: Any, offset: int = 0, count: Any = None, *, fallback: bool = True
    ) -> Any:
        is_ours = isinstance(transport, StreamTransport)
        return await real(self, transport, file, offset, count, fallback=fallback or is_ours)

    replace(patches, cls, sendfile)


def install(module: Any, patches: Patches) -> None:
    """Patch the event loops of `asyncio`, or that of `uvloop`."""
    if module.__name__ == "uvloop":
        _patch_opening(patches, module.Loop, "create_connection")
        _patch_opening(patches, module.Loop, "create_unix_connection")
        _patch_tls(patches, module.Loop)
        return
    _patch_opening(patches, module.base_events.BaseEventLoop, "create_connection")
    _patch_tls(patches, module.base_events.BaseEventLoop)
    _patch_files(patches, module.base_events.BaseEventLoop)
    if hasattr(module, "unix_events"):
        _patch_opening(patches, module.SelectorEventLoop, "create_unix_connection")
