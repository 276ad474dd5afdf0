"""Seam: `websockets` clients, asyncio and threads (13 and later).

A connection is one call: messages that the agent sends are compared in order, messages that it received are released in
order. The agent holds websockets' own connection while recording, and a subclass of it without a network in a replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from spanreplay.dialects import meta, read_realtime
from spanreplay.model.call import Effect, Kind, Outcome
from spanreplay.runtime.calls.cancel import await_cancellation
from spanreplay.runtime.calls.spec import Spec
from spanreplay.runtime.calls.turns import end_stream
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import Run
from spanreplay.runtime.wire.http_errors import describe as describe_error
from spanreplay.runtime.wire.http_wire import describe_request
from spanreplay.seams.transport.conversation import GOT, QUIT, SENT, Conversation, Quit, begin_conversation

_ASYNC = "websockets.asyncio.client"
_SYNC = "websockets.sync.client"


def _describe(run: Run, uri: str, headers: Any) -> Spec:
    given = headers.raw_items() if hasattr(headers, "raw_items") else dict(headers or ()).items()
    spec, _ = describe_request(run, "GET", uri, [(str(k), str(v)) for k, v in given], b"")
    parts = urlsplit(uri)
    spec.effect = Effect.WRITE.value
    spec.name = f"websocket {parts.hostname}{parts.path}"
    exchange = read_realtime(uri, ())
    if exchange is not None:
        spec.kind, spec.name = Kind.LLM.value, exchange.request.name
        spec.meta["model"] = exchange.request.model
    return spec


def _read_meta(uri: str, events: list[list[Any]]) -> dict[str, Any]:
    """Describe what a realtime model was asked and what it answered."""
    exchange = read_realtime(uri, ((side == SENT, message) for side, _, message in events))
    return dict(meta(exchange.request, exchange.response)) if exchange is not None else {}


def _begin(uri: str, headers: Any) -> Conversation | None:
    conversation = begin_conversation(lambda run: _describe(run, uri, headers))
    if conversation is not None and conversation.crossing.spec.kind == Kind.LLM.value:
        conversation.read_meta = partial(_read_meta, uri)
    return conversation


def _fail(conversation: Conversation, exc: BaseException) -> None:
    """Record how a connection ended; if the peer closed it, that is not an error of the call."""
    is_closed = type(exc).__name__ == "ConnectionClosedOK"
    outcome = Outcome.OK if is_closed else Outcome.ERROR if isinstance(exc, Exception) else Outcome.CANCELLED
    conversation.finish("error", error=describe_error(exc), outcome=outcome)


def _is_closing(exc: BaseException) -> bool:
    return type(exc).__name__ in ("ConnectionClosed", "ConnectionClosedOK", "ConnectionClosedError")


def _note_sent(conversation: Conversation, message: Any) -> Any:
    """Note a whole message; a message sent in pieces is noted joined. Returns what to send."""
    if isinstance(message, (str, bytes)):
        conversation.note(SENT, message)
    elif isinstance(message, (bytearray, memoryview)):
        conversation.note(SENT, bytes(message))
    elif hasattr(message, "__aiter__"):
        return _note_pieces(conversation, message)
    else:
        message = list(message)
        conversation.note(SENT, _join(message))
    return message


async def _note_pieces(conversation: Conversation, pieces: Any) -> AsyncIterator[Any]:
    kept = []
    async for piece in pieces:
        kept.append(piece)
        yield piece
    conversation.note(SENT, _join(kept))


def _join(pieces: list[Any]) -> str | bytes:
    if pieces and isinstance(pieces[0], str):
        return "".join(pieces)
    return b"".join(map(bytes, pieces))


# ── recording ───────────────────────────────────────────────────────────────────────────────────────
def _tee_async(connection: Any, conversation: Conversation) -> Any:
    recv, send, close = connection.recv, connection.send, connection.close

    async def tee_recv(*args: Any, **kwargs: Any) -> Any:
        try:
            message = await conversation.aattempt(recv, *args, **kwargs)
        except asyncio.CancelledError:
            conversation.note(QUIT, "")
            raise
        except BaseException as exc:
            if _is_closing(exc):
                _fail(conversation, exc)
            raise
        conversation.note(GOT, message)
        return message

    async def tee_send(message: Any, *args: Any, **kwargs: Any) -> Any:
        return await send(_note_sent(conversation, message), *args, **kwargs)

    async def tee_close(*args: Any, **kwargs: Any) -> Any:
        try:
            return await close(*args, **kwargs)
        finally:
            conversation.finish("closed", extra=_describe_close(connection))

    connection.recv, connection.send, connection.close = tee_recv, tee_send, tee_close
    return connection


def _tee_sync(connection: Any, conversation: Conversation) -> Any:
    recv, send, close = connection.recv, connection.send, connection.close

    def tee_recv(*args: Any, **kwargs: Any) -> Any:
        try:
            message = conversation.attempt(recv, *args, **kwargs)
        except TimeoutError:
            conversation.note(QUIT, "")
            raise
        except BaseException as exc:
            if _is_closing(exc):
                _fail(conversation, exc)
            raise
        conversation.note(GOT, message)
        return message

    def tee_send(message: Any, *args: Any, **kwargs: Any) -> Any:
        return send(_note_sent(conversation, message), *args, **kwargs)

    def tee_close(*args: Any, **kwargs: Any) -> Any:
        try:
            return close(*args, **kwargs)
        finally:
            conversation.finish("closed", extra=_describe_close(connection))

    connection.recv, connection.send, connection.close = tee_recv, tee_send, tee_close
    return connection


def _describe_close(connection: Any) -> dict[str, Any]:
    return {"code": getattr(connection, "close_code", None), "reason": getattr(connection, "close_reason", None) or ""}


# ── serving ─────────────────────────────────────────────────────────────────────────────────────────
class _Served:
    """Common base of both served connections; precedes websockets' own class in the MRO."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._closed: tuple[int, str] | None = None

    def __del__(self) -> None:
        """Do nothing: nothing is open."""

    def _say(self, message: Any) -> None:
        if self._closed is not None:
            raise self._closed_ok()
        if isinstance(message, (bytearray, memoryview)):
            message = bytes(message)
        self._conversation.say(message if isinstance(message, (str, bytes)) else _join(list(message)))

    def _end(self) -> BaseException:
        if self._closed is not None:
            return self._closed_ok()
        if self._conversation.error:
            failure = self._conversation.restore_error()
            received = getattr(failure, "rcvd", None)
            self._closed = (received.code, received.reason) if received is not None else (1006, "")
            return failure
        return self._conversation.overrun()

    def _closed_ok(self) -> BaseException:
        if self._conversation.error:
            return self._conversation.restore_error()
        from websockets.exceptions import ConnectionClosedOK
        from websockets.frames import Close

        code, reason = self._closed or (1000, "")
        closed: BaseException = ConnectionClosedOK(Close(code, reason), Close(code, reason), False)
        return closed

    def _convert(self, message: Any, decode: bool | None) -> Any:
        if decode is True and isinstance(message, bytes):
            return message.decode()
        return message.encode() if decode is False and isinstance(message, str) else message

    def _close(self, code: int, reason: str) -> None:
        extra = self._conversation.extra
        if self._closed is None:
            self._closed = (extra.get("code") or code, extra.get("reason") or reason)

    @property
    def close_code(self) -> int | None:
        return self._closed[0] if self._closed is not None else None

    @property
    def close_reason(self) -> str | None:
        return self._closed[1] if self._closed is not None else None

    @property
    def state(self) -> Any:
        from websockets.protocol import State

        return State.OPEN if self._closed is None else State.CLOSED

    @property
    def subprotocol(self) -> str | None:
        found = self._conversation.extra.get("subprotocol")
        return str(found) if found else None

    local_address = remote_address = None
    latency = 0.0


class _ServedAsync(_Served):
    async def recv(self, decode: bool | None = None) -> Any:
        message = None if self._closed is not None else await self._conversation.hear_async()
        if isinstance(message, Quit):
            await await_cancellation(self._conversation.crossing)
        if message is None:
            raise self._end()
        return self._convert(message, decode)

    async def recv_streaming(self, decode: bool | None = None) -> AsyncIterator[Any]:
        yield await self.recv(decode)

    async def send(self, message: Any, text: bool | None = None) -> None:
        if hasattr(message, "__aiter__"):
            message = [piece async for piece in message]
        self._say(message)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self._close(code, reason)

    async def wait_closed(self) -> None:
        return

    async def ping(self, data: Any = None) -> Any:
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        future.set_result(0.0)
        return future

    async def pong(self, data: Any = b"") -> None:
        return


class _ServedSync(_Served):
    def recv(self, timeout: float | None = None, decode: bool | None = None) -> Any:
        message = None if self._closed is not None else self._conversation.hear()
        if isinstance(message, Quit):
            self._conversation.compare_limit(message, timeout)
            raise TimeoutError(f"timed out in {timeout:.1f}s" if timeout is not None else "timed out")
        if message is None:
            raise self._end()
        return self._convert(message, decode)

    def recv_streaming(self, decode: bool | None = None) -> Any:
        yield self.recv(None, decode)

    def send(self, message: Any, text: bool | None = None) -> None:
        self._say(message)

    def close(self, code: int = 1000, reason: str = "") -> None:
        self._close(code, reason)

    def ping(self, data: Any = None, ack_on_close: bool = False) -> Any:
        import threading

        answered = threading.Event()
        answered.set()
        return answered

    def pong(self, data: Any = b"") -> None:
        return


def _serve(conversation: Conversation, served_class: Callable[[Conversation], Any]) -> Any:
    end_stream(conversation.crossing)
    if conversation.end == "refused":
        raise conversation.restore_error()
    conversation.follow()
    return served_class(conversation)


def _install_async(module: Any, patches: Patches) -> None:
    served_class: Any = type("ServedClientConnection", (_ServedAsync, module.ClientConnection), {})
    # The coroutine that connects: `connect` since websockets 16, `__await_impl__` before
    name = "connect" if "connect" in vars(module.connect) else "__await_impl__"

    async def dial(wrapped: Any, connector: Any, args: Any, kwargs: Any) -> Any:
        conversation = _begin(connector.uri, getattr(connector, "additional_headers", None))
        if conversation is None:
            return await wrapped(*args, **kwargs)

        async def connect() -> Any:
            if conversation.is_served:
                return _serve(conversation, served_class)
            with conversation.live():
                return await wrapped(*args, **kwargs)

        try:
            connection = await conversation.aattempt(connect)
        except BaseException as exc:
            _refused(conversation, exc)
            raise
        if conversation.is_served and name != "connect":
            connector.connection = connection  # leaving `async with` closes it
        return _tee_async(connection, conversation)

    patches.wrap(module.connect, name, dial)


def _install_sync(module: Any, patches: Patches) -> None:
    served_class: Any = type("ServedClientConnection", (_ServedSync, module.ClientConnection), {})

    def connect(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        uri = args[0] if args else kwargs["uri"]
        conversation = _begin(uri, kwargs.get("additional_headers"))
        if conversation is None:
            return wrapped(*args, **kwargs)

        def dial() -> Any:
            if conversation.is_served:
                return _serve(conversation, served_class)
            with conversation.live():
                return wrapped(*args, **kwargs)

        try:
            connection = conversation.attempt(dial)
        except BaseException as exc:
            _refused(conversation, exc)
            raise
        return _tee_sync(connection, conversation)

    patches.wrap(module, "connect", connect)


def _refused(conversation: Conversation, exc: BaseException) -> None:
    outcome = Outcome.ERROR if isinstance(exc, Exception) else Outcome.CANCELLED
    conversation.finish("refused", error=describe_error(exc), outcome=outcome)


def install(module: Any, patches: Patches) -> None:
    """Patch `websockets.asyncio.client` or `websockets.sync.client`."""
    if module.__name__ == _ASYNC:
        _install_async(module, patches)
    elif module.__name__ == _SYNC:
        _install_sync(module, patches)
