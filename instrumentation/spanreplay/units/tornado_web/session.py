"""Websocket sessions of Tornado's server: each one is a unit with the same calls as an ASGI session.

    http:response           (write)  the handshake
    http:websocket.receive  (read)   each message of the client, and its disconnection with its code
    http:websocket.send     (write)  each message of the application, its close
    http:websocket.end      (write)  the handler has returned, or raised an exception

They are made between the handler and Tornado's protocol object. Pings and pongs are not recorded, because timers decide
them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Kind
from spanreplay.runtime.calls.function_calls import call_async, call_sync
from spanreplay.units.asgi_websocket import (
    LOST,
    build_message,
    describe_message,
    describe_received,
    describe_sent,
    nothing_comes,
)
from spanreplay.units.http_exchange import PART
from spanreplay.units.tornado_web.exchange import Exchange, RecordedExchange

__all__ = ["SilentStream", "install_sessions"]

_KIND: Final = Kind.HTTP.value
_TYPE: Final = "type"
_DISCONNECT: Final = "websocket.disconnect"
_UNSENT: Final = "a message of this session could not be sent after the application had gone on: a replay does not know"


def install_sessions(module: Any, patches: Any) -> None:
    """Patch Tornado's module of websockets."""
    handler, protocol = module.WebSocketHandler, module.WebSocketProtocol13
    patches.wrap(handler, "_detach_stream", _begin)
    patches.wrap(handler, "close", _close)
    patches.wrap(handler, "on_ws_connection_close", _end)
    patches.wrap(protocol, "write_message", _write)
    patches.wrap(protocol, "start_pinging", _ping)
    patches.wrap(protocol, "_receive_frame_loop", _receive)
    patches.wrap(module.WebSocketProtocol, "_run_callback", _call)


def _find(handler: Any) -> Exchange | None:
    """Return the session's exchange; None for a websocket client, and for a session that is no unit."""
    exchange = getattr(getattr(handler, "request", None), "connection", None)
    return exchange if isinstance(exchange, Exchange) else None


def _begin(wrapped: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    exchange = _find(handler)
    if exchange is not None:
        exchange.is_session = True
    return wrapped(*args, **kwargs)


# ── what comes in ───────────────────────────────────────────────────────────────────────────────────
def _call(wrapped: Any, protocol: Any, args: Any, kwargs: Any) -> Any:
    """Record a message that the handler is called with."""
    exchange, callback = _find(protocol.handler), args[0]
    if isinstance(exchange, RecordedExchange) and callback == getattr(protocol.handler, "on_message", None):
        message = args[1]
        described = {_TYPE: "websocket.receive", "text" if isinstance(message, str) else "bytes": message}
        guard.guarded(PART, _note_received, exchange, described)
    return wrapped(*args, **kwargs)


def _end(wrapped: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    """Record that the client has gone, unless the connection was closed because the handler failed."""
    exchange = _find(handler)
    if isinstance(exchange, RecordedExchange) and exchange.is_session and exchange.raised is None:
        code, reason = (lambda close_code=None, close_reason=None: (close_code, close_reason))(*args, **kwargs)
        guard.guarded(PART, _note_received, exchange, {_TYPE: _DISCONNECT, "code": code, "reason": reason})
    return wrapped(*args, **kwargs)


def _note_received(exchange: RecordedExchange, message: Mapping[str, Any]) -> None:
    described, is_whole = describe_message(message)
    if not is_whole:
        exchange.hole(LOST)
    with exchange.inside():
        call_sync(describe_received, lambda: described)


async def _receive(wrapped: Any, protocol: Any, args: Any, kwargs: Any) -> Any:
    """In a replay, call the handler with the recorded messages."""
    exchange, handler = _find(protocol.handler), protocol.handler
    if exchange is None or isinstance(exchange, RecordedExchange):
        return await wrapped(*args, **kwargs)
    code = reason = None
    try:
        while not protocol.client_terminated:
            with exchange.inside():
                message = build_message(await call_async(describe_received, nothing_comes))
            if message[_TYPE] == _DISCONNECT:
                code, reason = message["code"], message["reason"]
                protocol.client_terminated = True
                protocol.close(code)
            else:
                await _work(protocol, message["text"] if "text" in message else message["bytes"])
    finally:
        handler.on_ws_connection_close(code, reason)
    return None


async def _work(protocol: Any, message: str | bytes) -> None:
    gen: Any = import_module("tornado.gen")
    try:
        result = protocol.handler.on_message(message)
        if result is not None:
            await gen.convert_yielded(result)
    except (Exception, asyncio.CancelledError):  # noqa: BLE001 -- as Tornado, which closes the session
        protocol.handler.log_exception(*sys.exc_info())
        protocol._abort()


# ── what goes out ───────────────────────────────────────────────────────────────────────────────────
def _write(wrapped: Any, protocol: Any, args: Any, kwargs: Any) -> Any:
    exchange = _find(protocol.handler)
    if exchange is None or exchange.is_of_another():
        return wrapped(*args, **kwargs)
    message, is_binary = (lambda message, binary=False: (message, binary))(*args, **kwargs)
    if isinstance(message, dict):
        message = json.dumps(message)
    described = {_TYPE: "websocket.send", "bytes" if is_binary else "text": message}
    written: list[asyncio.Future[None]] = []

    def write() -> None:
        written.append(wrapped(*args, **kwargs))
        written[0].add_done_callback(lambda done: _look(exchange, done))

    _send(exchange, described, write)
    if not written:
        written.append(asyncio.get_running_loop().create_future())
        written[0].set_result(None)
    return written[0]


def _look(exchange: Exchange, done: asyncio.Future[None]) -> None:
    if done.cancelled() or done.exception() is not None:
        exchange.hole(_UNSENT)


def _close(wrapped: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    exchange = _find(handler)
    if exchange is None or handler.ws_connection is None or exchange.is_of_another():
        return wrapped(*args, **kwargs)
    code, reason = (lambda code=None, reason=None: (code, reason))(*args, **kwargs)
    _send(exchange, {_TYPE: "websocket.close", "code": code, "reason": reason}, lambda: None)
    return wrapped(*args, **kwargs)


def _send(exchange: Exchange, message: Mapping[str, Any], send: Callable[[], None]) -> None:
    arguments = describe_message(message)[0]
    with exchange.inside():
        call_sync(lambda: describe_sent(arguments), send)


def _ping(wrapped: Any, protocol: Any, args: Any, kwargs: Any) -> Any:
    """In a replay there is no client to ping."""
    exchange = _find(protocol.handler)
    return wrapped(*args, **kwargs) if exchange is None or isinstance(exchange, RecordedExchange) else None


class SilentStream:
    """A connection whose client is a recording: what the protocol writes is discarded."""

    def __init__(self) -> None:
        self._is_closed = False
        nothing = {"add_timeout": lambda *_: None, "remove_timeout": lambda *_: None, "time": lambda: 0.0}
        self.io_loop = SimpleNamespace(**nothing)

    def write(self, data: bytes) -> asyncio.Future[None]:
        """Discard data."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        written.set_result(None)
        return written

    def closed(self) -> bool:
        """Whether the server has closed the connection."""
        return self._is_closed

    def close(self) -> None:
        """Close the connection for the server."""
        self._is_closed = True

    def set_nodelay(self, value: bool) -> None:
        """No-op."""
