"""Servers that the agent's process runs itself: requests to them are not a boundary, because they run in this process.

They are recognised by the ports that their sockets listen on. A server in native code (uvloop, grpc) is not recognised.

A port that the system chooses is recorded: it may be meant for a program (`chromedriver --port=…`) or for a prompt.
A replay binds the same one if it is free.
"""

from __future__ import annotations

import _socket
import socket
import sys
from types import FrameType
from typing import Any, Final

from spanreplay.model import ids
from spanreplay.runtime.agent_patches import asks, read
from spanreplay.runtime.caller.caller import is_ours
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.own_ports import note_served
from spanreplay.runtime.reads import source
from spanreplay.runtime.run import active_run

_getframe: Final = sys._getframe
_PORT: Final = source("random", "socket.port", is_loose=True)


def install(module: Any, patches: Patches) -> None:
    """Patch `socket`."""

    def listen(wrapped: Any, sock: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        if active_run() is not None and sock.family in (module.AF_INET, module.AF_INET6):
            note_served(sock.getsockname()[1])
        return result

    def bind(wrapped: Any, sock: Any, args: Any, kwargs: Any) -> Any:
        is_stream = sock.family in (module.AF_INET, module.AF_INET6) and sock.type == module.SOCK_STREAM
        address = args[0] if args else None
        is_open = is_stream and isinstance(address, tuple) and len(address) > 1 and address[1] == 0
        if not is_open or not asks(_caller(_getframe(1))):
            return wrapped(*args, **kwargs)
        return _bind_as_recorded(wrapped, sock, address)

    patches.wrap(module.socket, "listen", listen)
    patches.wrap(module.socket, "bind", bind)


def _caller(frame: FrameType) -> FrameType:
    """The frame that calls through other patches of the same function, or through the standard library's servers."""
    while (is_ours(name := frame.f_code.co_filename) or ids.is_stdlib_file(name)) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _bind_as_recorded(bind: Any, sock: Any, address: Any) -> None:
    run = active_run()
    if run is None or run.resolver.connects:
        bind(address)
        read(_PORT, lambda: sock.getsockname()[1])
        return
    port = read(_PORT, lambda: 0)
    if type(port) is not int or not 0 < port < 65536 or not _is_free(sock.family, (address[0], port, *address[2:])):
        bind(address)
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for `listen`, too
    bind((address[0], port, *address[2:]))


def _is_free(family: int, address: Any) -> bool:
    """Whether nobody listens at an address; connections of the recorded run may not have been forgotten yet."""
    probe = _socket.socket(family, socket.SOCK_STREAM)  # below our patches: it is no server
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        probe.listen(1)
    except OSError:
        return False
    finally:
        probe.close()
    return True
