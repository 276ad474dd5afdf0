"""Part of the socket seam: names that are looked up for the agent, answered from the recording in a replay.

A library that looks up where to send its datagrams gets an unused address in a replay: nothing is sent there.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import Patch, install_patch
from spanreplay.runtime.calls.function_calls import call_sync
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.own_ports import is_here, names_itself
from spanreplay.seams.machine.sockets import streams
from spanreplay.seams.machine.sockets.datagrams import drops, records
from spanreplay.seams.machine.sockets.socket_askers import BARE, BY_LIBRARY, who_asks
from spanreplay.seams.machine.sockets.socket_calls import describe

_getframe: Final = sys._getframe
_NOBODY: Final = "192.0.2.1"
"""An address for documentation (RFC 5737)."""
_NAMES: Final = {
    "getaddrinfo": ("host", "port", "family", "type", "proto", "flags"),
    "gethostbyname": ("hostname",),
    "gethostbyname_ex": ("hostname",),
    "gethostbyaddr": ("ip_address",),
    "getnameinfo": ("sockaddr", "flags"),
}
"""Function → its parameters."""
_BACKWARDS: Final = frozenset({"gethostbyaddr", "getnameinfo"})
"""Reverse lookups: they ask for the name of an address."""


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _patch(patches: Patches, module: Any, name: str) -> None:
    real = getattr(module, name)
    parameters = _NAMES[name]

    def ask(patch: Patch, *args: Any, **kwargs: Any) -> Any:
        frame = _getframe(1)
        by = who_asks(frame) or BY_LIBRARY
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        if drops(by) and int(given.get("type", 0)) in BARE:
            family, kind = module.AF_INET, module.SOCK_DGRAM
            port = given.get("port")
            return [(family, kind, module.IPPROTO_UDP, "", (_NOBODY, port if isinstance(port, int) else 0))]
        asks_nobody = names_itself if name in _BACKWARDS else is_here
        if asks_nobody(_text(given.get(parameters[0]))) or not (records(by) or streams.hears(None, frame)):
            return real(*args, **kwargs)
        streams.insist(name, (given.get(parameters[0]), given.get("port")))
        shown = {key: int(value) if isinstance(value, int) else value for key, value in given.items() if value}
        return call_sync(lambda: describe(name, shown, Effect.READ), lambda: real(*args, **kwargs))

    install_patch(patches, module, name, ask, Patch(module.__name__, name, real))


def install(module: Any, patches: Patches) -> None:
    """Patch the functions of `socket` that look a name up."""
    for name in _NAMES:
        _patch(patches, module, name)
