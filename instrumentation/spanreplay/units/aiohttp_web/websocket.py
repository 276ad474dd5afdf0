"""Websocket sessions of aiohttp's own server: each one is a unit with the same calls as an ASGI session.

    http:websocket.send     (write)  the handshake, each message of the application, its close
    http:websocket.receive  (read)   the application's input from the connection: messages, pings, its end
    http:websocket.end      (write)  the application has returned, or raised an exception

They are made where the application's websocket object talks to its connection, so the rest of it remains aiohttp's
own, also in a replay. Pings and pongs that the application sends are not recorded, because timers decide them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from spanreplay.model import guard
from spanreplay.model.call import Kind
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.calls.function_calls import call_async, call_sync
from spanreplay.units.asgi_messages import describe_headers
from spanreplay.units.asgi_websocket import (
    LOST,
    build_message,
    describe_message,
    describe_received,
    describe_sent,
    nothing_comes,
    receive_message,
)
from spanreplay.units.asgi_websocket import record_end as record_session_end
from spanreplay.units.http_exchange import PART

__all__ = ["Session", "record_end", "take_over"]

_KIND: Final = Kind.HTTP.value
_TYPE, _EXTRA, _CODE = "type", "extra", "code"
_ENDED, _BROKEN = "EOF", "PROTOCOL_ERROR"
_UNKNOWN: Final = "this version of aiohttp sends messages in a way that is not recorded"


class Session(Protocol):
    """The request that was upgraded to a session."""

    is_recorded: bool
    is_websocket: bool
    is_dated_by_server: bool

    def inside(self) -> AbstractContextManager[object]:
        """A block whose calls belong to the session."""

    def note(self, make: Callable[..., object], *args: object) -> None:
        """Make the session's own calls."""

    def hole(self, reason: str) -> None:
        """Note that the recording of the session is incomplete."""

    def is_of_another(self) -> bool:
        """Whether the code that is writing belongs to another request or the process."""


def take_over(response: Any, exchange: Session) -> None:
    """Put the exchange between an application's websocket and its connection, after the handshake."""
    exchange.is_websocket = True
    headers = [(str(name).encode(), str(value).encode()) for name, value in response.headers.items()]
    headers = [each for each in headers if not (exchange.is_dated_by_server and each[0].lower() == b"date")]
    arguments = {_TYPE: "websocket.accept", "headers": describe_headers(headers)}
    with exchange.inside():
        exchange.note(call_sync, lambda: describe_sent(arguments), lambda: None)
    if not hasattr(response._writer, "send_frame"):
        exchange.hole(_UNKNOWN)
        return
    response._reader, response._writer = _Reader(response._reader, exchange), _Writer(response._writer, exchange)
    if not exchange.is_recorded:
        response._cancel_heartbeat()
        response._heartbeat = None  # the recorded client's pongs are replayed as they arrived


def record_end(exchange: Session, raised: BaseException | None) -> None:
    """Record how the application finished the session."""
    with exchange.inside():
        record_session_end(raised)


class _Side:
    """Wraps one side of a connection; all but messages is delegated to the connection."""

    def __init__(self, side: Any, exchange: Session) -> None:
        self._side = side
        self._exchange = exchange

    def __getattr__(self, name: str) -> Any:
        if name == "_side":  # asked while a copy is being made, before __init__
            raise AttributeError(name)
        return getattr(self._side, name)


class _Reader(_Side):
    """The incoming side."""

    async def read(self) -> Any:
        """Return the next message. Raises: the connection's exception when it ends."""
        if self._exchange.is_recorded:
            return await receive_message(
                self._exchange, self._side.read, _describe, lambda exc: isinstance(exc, Exception)
            )
        with self._exchange.inside():
            return _build(await call_async(describe_received, nothing_comes))


class _Writer(_Side):
    """The outgoing side."""

    async def send_frame(self, message: Any, opcode: Any, *args: Any, **kwargs: Any) -> None:
        """Record and send a frame; text and binary frames only are recorded."""
        from aiohttp import WSMsgType

        kind = WSMsgType(opcode)
        if kind in (WSMsgType.TEXT, WSMsgType.BINARY):
            frame = {_TYPE: kind.name, "text" if kind is WSMsgType.TEXT else "bytes": bytes(message)}
            await self._send(frame, "send_frame", message, opcode, *args, **kwargs)
        elif self._exchange.is_recorded:
            await self._side.send_frame(message, opcode, *args, **kwargs)

    async def close(self, code: Any = 1000, message: Any = b"") -> None:
        """Record and close the connection."""
        reason = message if isinstance(message, str) else bytes(message).decode("utf-8", "replace")
        await self._send({_TYPE: "CLOSE", _CODE: int(code), _EXTRA: reason}, "close", code, message)

    async def _send(self, frame: Mapping[str, Any], name: str, *args: Any, **kwargs: Any) -> None:
        send = getattr(self._side, name)
        if self._exchange.is_of_another():
            await send(*args, **kwargs)
            return
        found = guard.guarded(PART, describe_message, frame)
        if found is None:
            self._exchange.hole(LOST)
            await send(*args, **kwargs)
            return
        is_recorded = self._exchange.is_recorded
        with self._exchange.inside():
            function_call = describe_sent(found[0])
            await call_async(lambda: function_call, lambda: send(*args, **kwargs) if is_recorded else nothing_comes())


def _describe(came: Any) -> tuple[dict[str, Any], bool]:
    """Return a message or a connection's exception as a value, and whether it is complete."""
    from aiohttp import EofStream, WebSocketError

    if isinstance(came, EofStream):
        return {_TYPE: _ENDED}, True
    if isinstance(came, WebSocketError):
        return {_TYPE: _BROKEN, _CODE: int(came.code), _EXTRA: str(came)}, True
    if isinstance(came, Exception):
        return {_TYPE: type(came).__qualname__}, False
    found: dict[str, Any] = {_TYPE: came.type.name}
    if isinstance(came.extra, str):
        found[_EXTRA] = came.extra
    if isinstance(came.data, (str, bytes, bytearray)):
        frame = "text" if isinstance(came.data, str) else "bytes"
        described, is_whole = describe_message({frame: came.data})
        return {**found, **described}, is_whole
    if isinstance(came.data, int):
        found[_CODE] = int(came.data)
    return found, came.data is None or isinstance(came.data, int)


def _build(described: Mapping[str, Any]) -> Any:
    """Invert `_describe`. Raises: the connection's recorded exception; ReplayMiss if it was not recorded."""
    from aiohttp import EofStream, WebSocketError, WSMessage, WSMsgType

    kind = described.get(_TYPE)
    if kind == _ENDED:
        raise EofStream
    if kind == _BROKEN:
        raise WebSocketError(described[_CODE], described[_EXTRA])
    if kind not in WSMsgType.__members__:
        raise ReplayMiss("a message of this session was not recorded")
    message = build_message(described)
    data = message.get("text", message.get("bytes", described.get(_CODE)))
    return WSMessage(WSMsgType[str(kind)], data, described.get(_EXTRA))
