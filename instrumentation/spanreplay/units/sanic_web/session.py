"""Websocket sessions of Sanic's own server: each one is a unit with the same calls as an ASGI session.

    http:websocket.send     (write)  the handshake, each message of the application, its close
    http:websocket.receive  (read)   each message of the client, a timeout, the client's close
    http:websocket.end      (write)  the application has returned, or raised an exception

They are made between the application and Sanic's websocket object, also in a replay. Pings and pongs are not recorded,
because timers decide them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, Protocol

from spanreplay.model.call import Kind
from spanreplay.runtime.calls.function_calls import call_async, call_sync
from spanreplay.units.asgi_websocket import Session as Connection
from spanreplay.units.asgi_websocket import (
    build_message,
    describe_message,
    describe_received,
    describe_sent,
    nothing_comes,
    receive_message,
)

__all__ = ["Session"]

_KIND: Final = Kind.HTTP.value
_TYPE: Final = "type"
_MESSAGE, _BURST, _NOTHING = "websocket.receive", "burst", "nothing"
_CLOSED, _ENDED = "websocket.disconnect", "cancelled"


class _Connection(Connection, Protocol):
    is_gone: bool


class Session:
    """The websocket that the application knows; all but messages is delegated to Sanic's own."""

    def __init__(self, websocket: Any, exchange: _Connection, *, is_recorded: bool) -> None:
        self._websocket = websocket
        self._exchange = exchange
        self._is_recorded = is_recorded
        self.is_closing = False

    def __getattr__(self, name: str) -> Any:
        if name == "_websocket":  # asked while a copy is being made, before __init__
            raise AttributeError(name)
        return getattr(self._websocket, name)

    def accept(self) -> None:
        """Record the handshake."""
        arguments = {_TYPE: "websocket.accept", "subprotocol": self._websocket.subprotocol}
        with self._exchange.inside():
            call_sync(lambda: describe_sent(arguments), lambda: None)

    async def recv(self, timeout: float | None = None) -> Any:
        """Return the next message; None after a timeout. Raises: what Sanic raises when the client has closed."""
        return await self._receive(lambda: self._websocket.recv(timeout))

    async def recv_burst(self, max_recv: int = 256) -> Sequence[Any]:
        """Return the messages that have arrived."""
        burst: Sequence[Any] = await self._receive(lambda: self._websocket.recv_burst(max_recv))
        return burst

    async def recv_streaming(self) -> AsyncIterator[Any]:
        """Yield the frames of the next message."""
        frames: Any = self._websocket.recv_streaming() if self._is_recorded else None
        try:
            while (frame := await self._receive(lambda: anext(frames, None))) is not None:
                yield frame
        finally:
            if frames is not None:
                await frames.aclose()

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            while True:
                yield await self.recv()
        except _closed_ok():
            return

    async def _receive(self, receive: Callable[[], Awaitable[Any]]) -> Any:
        if self._is_recorded:
            return await receive_message(self._exchange, receive, _describe, self._keeps)
        with self._exchange.inside():
            return _build(await call_async(describe_received, nothing_comes))

    def _keeps(self, exc: BaseException) -> bool:
        """Whether the end of a wait comes from the client or a timeout, not from the end of the session."""
        return isinstance(exc, Exception) or (isinstance(exc, asyncio.CancelledError) and not self._exchange.is_gone)

    async def send(self, message: Any) -> None:
        """Send a message."""
        kind = "text" if isinstance(message, str) else "bytes"
        value = message if isinstance(message, (str, bytes, bytearray, memoryview)) else b""
        described = {_TYPE: "websocket.send", kind: value if isinstance(value, str) else bytes(value)}
        await self._send(described, lambda: self._websocket.send(message))

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the session."""
        is_first, self.is_closing = not self.is_closing, True
        if is_first:
            described = {_TYPE: "websocket.close", "code": code, "reason": reason}
            await self._send(described, lambda: self._websocket.close(code, reason))
        elif self._is_recorded:
            await self._websocket.close(code, reason)

    def end_connection(self, code: int = 1000, reason: str = "") -> Any:
        """End the connection without a handshake."""
        self.is_closing = True
        return self._websocket.end_connection(code, reason) if self._is_recorded else True

    async def _send(self, described: Mapping[str, Any], send: Callable[[], Awaitable[Any]]) -> None:
        async def pass_on() -> None:
            await send()

        arguments = describe_message(described)[0]
        with self._exchange.inside():
            await call_async(lambda: describe_sent(arguments), pass_on if self._is_recorded else nothing_comes)


def _closed_ok() -> type[Exception]:
    found: type[Exception] = import_module("websockets.exceptions").ConnectionClosedOK
    return found


def _describe(came: Any) -> tuple[dict[str, Any], bool]:
    """Return what came as a value, and whether it is complete."""
    if came is None:
        return {_TYPE: _NOTHING}, True
    if isinstance(came, list):
        found = [_describe(each) for each in came]
        return {_TYPE: _BURST, "messages": [each for each, _ in found]}, all(is_whole for _, is_whole in found)
    if isinstance(came, asyncio.CancelledError):
        return {_TYPE: _ENDED}, True
    if isinstance(came, BaseException):
        is_known = type(came).__name__ == "WebsocketClosed"
        return {_TYPE: _CLOSED, "reason": str(came)}, is_known
    return describe_message({_TYPE: _MESSAGE, "text" if isinstance(came, str) else "bytes": came})


def _build(described: Mapping[str, Any]) -> Any:
    """Invert `_describe`. Raises: what the application got."""
    if described[_TYPE] == _NOTHING:
        return None
    if described[_TYPE] == _BURST:
        return [_build(each) for each in described["messages"]]
    if described[_TYPE] == _ENDED:
        raise asyncio.CancelledError
    if described[_TYPE] == _CLOSED:
        raise import_module("sanic.exceptions").WebsocketClosed(described["reason"])
    message = build_message(described)
    return message["text"] if "text" in message else message["bytes"]
