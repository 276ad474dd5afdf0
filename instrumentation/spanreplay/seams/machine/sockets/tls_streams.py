"""Part of the socket seam: encrypted connections of `ssl`, recorded above the encryption.

The handshake is one call, whose random values are nobody's business. In a replay an `SSLSocket` is made without one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.patches import Patches
from spanreplay.seams.machine.sockets import streams
from spanreplay.seams.machine.sockets.socket_calls import copy_bytes, replace

_getframe: Final = sys._getframe
_ASKED: Final = (
    "cipher", "compression", "get_channel_binding", "getpeercert", "pending", "selected_alpn_protocol",
    "shared_ciphers", "version",
)  # fmt: skip
"""Methods that return a fact about the connection."""
_SEND: Final[Mapping[str, Any]] = {}


def install(module: Any, patches: Patches) -> None:
    """Patch `ssl`."""
    _patch_handshake(patches, module)
    _patch_data(patches, module.SSLSocket)
    for name in _ASKED:
        if hasattr(module.SSLSocket, name):
            _patch_question(patches, module.SSLSocket, name)


def _patch_handshake(patches: Patches, module: Any) -> None:
    find = streams.find  # finalizers close sockets after the end of this module
    cls = module.SSLSocket
    real_wrap, real_handshake, real_unwrap = module.SSLContext.wrap_socket, cls.do_handshake, cls.unwrap

    def wrap_socket(
        self: Any,
        sock: Any,
        server_side: bool = False,
        do_handshake_on_connect: bool = True,
        suppress_ragged_eofs: bool = True,
        server_hostname: Any = None,
        session: Any = None,
    ) -> Any:
        stream = find(sock)
        made: list[Any] = []

        def live() -> None:
            made.append(
                real_wrap(
                    self, sock, server_side, do_handshake_on_connect, suppress_ragged_eofs, server_hostname, session
                )
            )

        if stream is None or streams.recording_run(stream) is None:
            live()
            return made[0]
        with streams.moving(sock):
            if do_handshake_on_connect:
                streams.ask(stream, "start_tls", live, {"server_hostname": server_hostname}, Effect.WRITE)
            if not made:
                live()
        if not made[0]._connected:  # in a replay
            made[0]._connected = True
            made[0]._sslobj = self._wrap_socket(made[0], server_side, server_hostname, owner=made[0])
        stream.is_counted = False
        streams.follow(made[0], stream)
        return made[0]

    def do_handshake(self: Any, block: bool = False) -> None:
        stream = find(self)
        if stream is None:
            real_handshake(self, block)
            return
        stream.is_counted = False
        given = {"server_hostname": self.server_hostname}
        streams.ask(stream, "start_tls", lambda: real_handshake(self, block), given, Effect.WRITE)

    def unwrap(self: Any) -> Any:
        stream = find(self)
        if stream is None:
            return real_unwrap(self)
        made: list[Any] = []
        streams.ask(stream, "stop_tls", lambda: made.append(real_unwrap(self)), {}, Effect.WRITE)
        self._sslobj = None
        found = made[0] if made else self
        streams.follow(found, stream)
        return found

    replace(patches, module.SSLContext, wrap_socket)
    replace(patches, cls, do_handshake)
    replace(patches, cls, unwrap)


def _patch_data(patches: Patches, cls: Any) -> None:
    find = streams.find  # finalizers close sockets after the end of this module
    real_read, real_write, real_send = cls.read, cls.write, cls.send

    def read(self: Any, len: int = 1024, buffer: Any = None) -> Any:  # noqa: A002 -- its name there
        stream = find(self)
        if stream is None:
            return real_read(self, len, buffer)
        size = len
        if buffer is not None:
            room = memoryview(buffer).nbytes
            size = len if 0 < len <= room else room
        data = streams.receive(stream, size, 0, lambda wanted: real_read(self, wanted))
        if buffer is None:
            return data
        memoryview(buffer).cast("B")[: data.__len__()] = data
        return data.__len__()

    def write(self: Any, data: Any) -> Any:
        return _write(self, _getframe(1), "write", data, lambda sent: real_write(self, sent))

    def send(self: Any, data: Any, flags: int = 0) -> Any:
        return _write(self, _getframe(1), "send", data, lambda sent: real_send(self, sent, flags))

    for function in (read, write, send):
        replace(patches, cls, function)


def _write(sock: Any, frame: FrameType, name: str, data: Any, real: Callable[[Any], Any]) -> Any:
    stream = streams.find(sock)
    if stream is None or getattr(sock, "_sslobj", None) is None:  # a plain socket sends by itself
        return real(data)
    sent = copy_bytes(data)
    if sent is None:
        return real(data)
    return streams.send(stream, frame, name, sent, _SEND, lambda: real(sent))


def _patch_question(patches: Patches, cls: Any, name: str) -> None:
    find = streams.find  # finalizers close sockets after the end of this module
    real = getattr(cls, name)

    def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        stream = find(self)
        if stream is None:
            return real(self, *args, **kwargs)
        given = {"given": [*args, *kwargs.values()]} if args or kwargs else {}
        return streams.ask(stream, name, lambda: real(self, *args, **kwargs), given)

    ask.__name__ = name
    replace(patches, cls, ask)
