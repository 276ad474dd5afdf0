"""ASGI websocket sessions: each one is a unit. This module records and replays them.

    http:request            (read)   the server's scope: path, query, headers, subprotocols
    http:websocket.receive  (read)   each message of the client, its connect and its disconnect with their codes
    http:websocket.send     (write)  each message of the application: accept, text or bytes, close
    http:cancelled          (read)   the server cancels the application
    http:websocket.end      (write)  the application has returned, or raised an exception

All of them are calls of the unit's root lane, in order with the application's own calls between them.
Recording fails open: a message that can't be described is counted, and the application still gets it.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind, Outcome
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async, call_sync
from spanreplay.runtime.lanes import Lane, inside_lane
from spanreplay.runtime.process.own_ports import note_units
from spanreplay.units import caller
from spanreplay.units.asgi_messages import (
    BASE64,
    TEXT,
    Body,
    Message,
    Scope,
    describe_headers,
    describe_scope,
    read_headers,
)
from spanreplay.units.unit_run import UnitRun

__all__ = [
    "LOST",
    "RecordedSession",
    "ReplayedSession",
    "Session",
    "build_message",
    "describe_message",
    "describe_received",
    "describe_sent",
    "nothing_comes",
    "receive_message",
    "record_end",
]

_KIND: Final = Kind.HTTP.value
_PART: Final = "a websocket session"
REQUEST, CANCELLED = "request", "cancelled"
RECEIVE, SEND, END = "websocket.receive", "websocket.send", "websocket.end"
LOST: Final = "a message of this session could not be recorded"
_FRAMES: Final = ("text", "bytes")
_FRAME, _HEADERS, _OPAQUE = "frame", "headers", "body"


class Session(Protocol):
    """A request that was upgraded to a session."""

    def inside(self) -> AbstractContextManager[object]:
        """A block whose calls belong to the session."""

    def hole(self, reason: str) -> None:
        """Note that the recording of the session is incomplete."""


def describe_message(message: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return a message as a value, and whether it is complete; a frame above the limit has only size and hash."""
    found: dict[str, Any] = {}
    is_whole = True
    for name, value in message.items():
        if name in (*_FRAMES, _OPAQUE):
            if value is not None:
                body = Body()
                body.add(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value))
                found |= {_FRAME: name, **body.describe()}
                is_whole = body.is_kept
        elif name == _HEADERS:
            found[name] = describe_headers(value or ())
        else:
            found[name] = value
    return found, is_whole


def build_message(described: Mapping[str, Any]) -> Message:
    """Invert `describe_message`."""
    message = {name: value for name, value in described.items() if name not in (_FRAME, TEXT, BASE64, _HEADERS)}
    if _HEADERS in described:
        message[_HEADERS] = read_headers(described[_HEADERS])
    frame = described.get(_FRAME)
    if frame is not None:
        text = described.get(TEXT)
        if frame == TEXT:
            message[frame] = text if text is not None else ""
        else:
            message[frame] = text.encode("utf-8") if text is not None else base64.b64decode(described.get(BASE64, ""))
    return message


def describe_received(name: str = RECEIVE) -> FunctionCall:
    """Describe what comes in as a call."""
    return FunctionCall(_KIND, name, Effect.READ.value, {}, prints=False)


def describe_sent(arguments: Mapping[str, Any], name: str = SEND) -> FunctionCall:
    """Describe what goes out as a call."""
    return FunctionCall(_KIND, name, Effect.WRITE.value, dict(arguments), prints=False)


async def receive_message(
    session: Session,
    receive: Callable[[], Awaitable[Any]],
    describe: Callable[[Any], tuple[dict[str, Any], bool]],
    keeps: Callable[[BaseException], bool],
) -> Any:
    """Receive a message, or the exception that ends the wait, and record it. Raises: that exception.

    `describe` returns what came as a value, and whether it is complete; `keeps` says which exceptions are recorded.
    """
    came: list[Any] = []

    async def take() -> dict[str, Any]:
        try:
            came.append(await receive())
        except BaseException as exc:
            if not keeps(exc):
                raise
            came.append(exc)
        found = guard.guarded(_PART, describe, came[0])
        if found is None or not found[1]:
            session.hole(LOST)
        return {} if found is None else found[0]

    with session.inside():
        await call_async(describe_received, take)
    if isinstance(came[0], BaseException):
        raise came[0]
    return came[0]


def record_end(raised: BaseException | None) -> None:
    """Record how the application finished a session."""
    arguments = {} if raised is None else {"raised": f"{type(raised).__module__}.{type(raised).__qualname__}"}
    call_sync(lambda: describe_sent(arguments, END), lambda: None)


class RecordedSession:
    """Records one session: the messages between server and application."""

    def __init__(
        self, run: UnitRun, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        self._run = run
        self._receive = receive
        self._send = send

    def note_request(self, scope: Scope) -> None:
        """Record the start of the session."""
        note_units((scope.get("server") or (None, None))[1])
        described = describe_scope(scope)
        caller.look_at_caller(self._run, scope.get("headers") or (), lambda: described)
        call_sync(lambda: describe_received(REQUEST), lambda: described)

    async def receive(self) -> Message:
        """Receive the next message from the server and record it."""
        came: list[Message] = []

        async def take() -> dict[str, Any]:
            came.append(await self._receive())
            described = guard.guarded(_PART, self._describe_received, came[0])
            if described is None:
                self._run.hole(LOST)
                return {}
            return described

        with inside_lane(self._run.root_lane):
            await call_async(describe_received, take)
        return came[0]

    def _describe_received(self, message: Message) -> dict[str, Any]:
        described, is_whole = describe_message(message)
        if not is_whole:
            self._run.count("truncated")
        return described

    async def send(self, message: Message) -> None:
        """Record a message and send it, including the server's error if the client has disconnected."""
        found = guard.guarded(_PART, describe_message, message)
        if found is None:
            self._run.hole(LOST)
            await self._send(message)
            return
        function_call = FunctionCall(_KIND, SEND, Effect.WRITE.value, found[0], prints=False)
        with inside_lane(self._run.root_lane):
            await call_async(lambda: function_call, lambda: self._send(message))

    def end(self, raised: BaseException | None) -> None:
        """Record how the application finished the session, and end the unit."""
        is_by_server = isinstance(raised, asyncio.CancelledError)
        try:
            with inside_lane(self._run.root_lane):
                if is_by_server:
                    call_sync(lambda: describe_received(CANCELLED), lambda: None)
                record_end(raised)
        finally:
            if is_by_server:
                self._run.note_failure()
            self._run.end(Outcome.CANCELLED if is_by_server else Outcome.OK if raised is None else Outcome.ERROR)


class ReplayedSession:
    """Plays the server to the application for a recorded session."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    async def receive(self) -> Message:
        """Return the next recorded message once its turn comes. Raises: ReplayMiss if there is none."""
        with inside_lane(self._lane):
            return build_message(await call_async(describe_received, nothing_comes))

    async def send(self, message: Message) -> None:
        """Compare a message that the application sends. Raises: ReplayMiss, or the error the server raised."""
        function_call = FunctionCall(_KIND, SEND, Effect.WRITE.value, describe_message(message)[0], prints=False)
        with inside_lane(self._lane):
            await call_async(lambda: function_call, nothing_comes)

    def end(self, raised: BaseException | None) -> None:
        """Compare how the application finished. Raises: ReplayMiss."""
        with inside_lane(self._lane):
            record_end(raised)


async def nothing_comes() -> Any:
    """Answer a call that a replay must have in its recording. Raises: ReplayMiss."""
    raise ReplayMiss("a message can't come in live")
