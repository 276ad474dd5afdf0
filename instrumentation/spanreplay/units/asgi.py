"""ASGI applications: each HTTP request and each websocket session (`asgi_websocket`) is a unit.

The same code records a request and replays it.

    http:request   (read)    the server's scope: method, path, query, headers
    http:body      (read)    the body, once its last part has arrived
    http:disconnect (read)  the client went away before the response was complete
    http:cancelled (read)    the server cancels the application
    http:response  (write)   status, headers and body, when the last part is sent or the application returns
    http:raised    (pure)    an exception that the application raised after its response

All of them are calls of the unit's root lane, whichever task receives or sends. Recording fails open: an error in
this module is counted, and the application still gets the server's messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Effect, Outcome
from spanreplay.model.errors import ReplayMiss, is_missed
from spanreplay.runtime.calls import chains
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.runtime.lanes import Lane, inside_lane
from spanreplay.runtime.process.own_ports import note_units
from spanreplay.runtime.run import Run, active_run
from spanreplay.units import caller, factory, given
from spanreplay.units.asgi_messages import (
    Message,
    Scope,
    build_scope,
    cut_body,
    describe_scope,
)
from spanreplay.units.asgi_websocket import RecordedSession, ReplayedSession
from spanreplay.units.http_exchange import (
    BODY,
    CANCELLED,
    DISCONNECT,
    ENCODING,
    KIND,
    OF_BODIES,
    PART,
    REQUEST,
    ReceivedBody,
    Response,
    read_in,
)
from spanreplay.units.start import await_start
from spanreplay.units.stated import LANE
from spanreplay.units.unit_run import UnitRun

__all__ = ["AsgiUnits", "await_left", "play_request", "replay_request"]

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[Any]]


class AsgiUnits:
    """An application whose HTTP requests and websocket sessions are each recorded as a run."""

    def __init__(self, app: App, name: str) -> None:
        self._app = app
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        """Serve one connection through the application."""
        exchanges = _EXCHANGES.get(scope["type"])
        if exchanges is None:
            return await self._app(scope, receive, send)
        run = guard.guarded(PART, factory.open_unit, self._name)
        if run is None:
            return await self._app(scope, receive, send)
        exchange = exchanges(run, receive, send)
        with factory.inside_unit(run):
            guard.guarded(PART, exchange.note_request, scope)
            try:
                result = await self._app(scope, exchange.receive, exchange.send)
            except BaseException as exc:
                guard.guarded(PART, exchange.end, exc)
                guard.guarded(PART, chains.strip, exc)
                raise
            guard.guarded(PART, exchange.end, None)
        return result

    def __getattr__(self, name: str) -> Any:
        """Delegate other attributes to the application."""
        if name == "_app":  # asked while a copy is being made, before __init__
            raise AttributeError(name)
        return getattr(self._app, name)


def _add(response: Response, message: Message) -> None:
    kind = message["type"]
    if kind == "http.response.start":
        response.begin(int(message["status"]), message.get("headers") or ())
    elif kind == "http.response.body":
        response.add(bytes(message.get("body", b"")))
        response.is_complete = not message.get("more_body", False)
    else:
        response.add_other(str(kind))


class _Recorded:
    """Records one request: the messages between server and application."""

    def __init__(self, run: UnitRun, receive: Receive, send: Send) -> None:
        self._run = run
        self._receive = receive
        self._send = send
        self._body = ReceivedBody(run)
        self._is_gone = False
        self._has_body = True
        self._kept: Message | None = None
        """A message taken from the server before the application asked for it."""
        self._response = Response()

    def note_request(self, scope: Scope) -> None:
        """Record the start of the request."""
        headers = scope.get("headers") or ()
        self._has_body = any(bytes(name).lower() in OF_BODIES for name, _ in headers)
        encodings = [bytes(value).decode("latin-1") for name, value in headers if bytes(name).lower() == ENCODING]
        self._body.encoding = ", ".join(encodings)
        note_units((scope.get("server") or (None, None))[1])
        described = describe_scope(scope)
        caller.look_at_caller(self._run, headers, lambda: described)
        read_in(REQUEST, described)

    async def receive(self) -> Message:
        """Receive the next message from the server and record it."""
        message, self._kept = self._kept, None
        if message is None:
            message = await self._receive()
        guard.guarded(PART, self._note_received, message)
        return message

    def _note_received(self, message: Message) -> None:
        with inside_lane(self._run.root_lane):
            if message["type"] == "http.request":
                self._body.add(bytes(message.get("body", b"")), is_last=not message.get("more_body", False))
            elif message["type"] == "http.disconnect" and not self._response.is_complete and not self._is_gone:
                self._is_gone = True
                self._body.note()
                read_in(DISCONNECT, None)

    async def send(self, message: Message) -> None:
        """Send a message to the server. A complete response is recorded before its last part is sent."""
        guard.guarded(PART, self._note_sent, message)
        try:
            await self._send(message)
        except OSError:  # servers raise it when the client has disconnected
            self._is_gone = True
            raise

    def _look_for_client(self) -> None:
        """Check without waiting whether the client has disconnected, once the body is complete and can't be lost."""
        if self._kept is not None or self._is_gone or (self._has_body and not self._body.is_noted):
            return
        for _ in range(2):
            asking: Any = self._receive()
            try:
                asking.send(None)
            except StopIteration as stop:
                self._is_gone = stop.value["type"] == "http.disconnect"
                if self._is_gone:
                    return
                self._kept = stop.value
            else:
                asking.close()
                return

    def _note_sent(self, message: Message) -> None:
        _add(self._response, message)
        if self._response.is_complete:
            self._look_for_client()
            with inside_lane(self._run.root_lane):
                self._response.record()

    def end(self, raised: BaseException | None) -> None:
        """Record how the application finished the request, and end the unit."""
        is_by_server = isinstance(raised, asyncio.CancelledError)
        try:
            with inside_lane(self._run.root_lane):
                if is_by_server and not self._response.is_recorded:
                    read_in(CANCELLED, None)
                self._response.record(raised)
        finally:
            if is_by_server and not self._is_gone:
                self._run.note_failure()
            is_cancelled = self._is_gone or is_by_server
            ended = Outcome.CANCELLED if is_cancelled else Outcome.OK if raised is None else Outcome.ERROR
            self._run.end(ended)


_EXCHANGES: Final[dict[str, type[_Recorded | RecordedSession]]] = {"http": _Recorded, "websocket": RecordedSession}


# ── replay ──────────────────────────────────────────────────────────────────────────────────────────
class _Replayed:
    """Plays the server to the application for a recorded request."""

    def __init__(self, run: Run, lane: Lane) -> None:
        self._run = run
        self._lane = lane
        self._parts: list[bytes] = []
        self._is_body_given = False
        self._is_over = asyncio.Event()
        self._response = Response()

    async def receive(self) -> Message:
        """Return the recorded body in its parts; then wait for the recorded disconnect or the end of the response.

        Raises: ReplayMiss.
        """
        if not self._is_body_given:
            self._is_body_given = True
            with inside_lane(self._lane):
                is_given = given.has_body() and not self._has(BODY)
                self._parts = cut_body(given.put_body({} if is_given else await self._serve(BODY)))
        if self._parts:
            part = self._parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self._parts)}
        if self._has(DISCONNECT) and not self._response.is_complete:
            with inside_lane(self._lane):
                await self._serve(DISCONNECT)
        else:
            await self._is_over.wait()
        return {"type": "http.disconnect"}

    def _has(self, name: str) -> bool:
        return self._run.resolver.answers.index.at(self._lane.path, f"{KIND}:{name}", 0) is not None

    async def _serve(self, name: str) -> Any:
        return await call_async(lambda: FunctionCall(KIND, name, Effect.READ.value, {}, prints=False), _nothing)

    async def send(self, message: Message) -> None:
        """Compare a message that the application sends. Raises: ReplayMiss."""
        _add(self._response, message)
        if self._response.is_complete:
            self._is_over.set()
            with inside_lane(self._lane):
                self._response.record()

    async def serve(self, app: App, state: dict[str, Any] | None) -> None:
        """Call the application with the recorded request. Raises: ReplayMiss."""
        raised: BaseException | None = None
        scope = build_scope(given.put_request(await self._serve(REQUEST)), state)
        exchange = ReplayedSession(self._lane) if scope["type"] == "websocket" else self
        try:
            if self._has(CANCELLED):
                await self._cancel(app, scope, exchange)
            else:
                await app(scope, exchange.receive, exchange.send)
        except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001 -- the server would have received it
            raised = exc
        exchange.end(raised)

    def end(self, raised: BaseException | None) -> None:
        """Compare the response after the application has returned. Raises: ReplayMiss."""
        self._is_over.set()
        self._response.record(raised)

    async def _cancel(self, app: App, scope: Scope, exchange: _Replayed | ReplayedSession) -> None:
        """Cancel the application where the server cancelled it."""

        async def work() -> None:
            with inside_lane(self._lane):
                await app(scope, exchange.receive, exchange.send)

        working = asyncio.create_task(work())
        await self._serve(CANCELLED)
        working.cancel()
        await working


async def await_left(run: Run, before: set[asyncio.Task[Any]]) -> None:
    """Let tasks that the application left running make the unit's remaining recorded calls."""
    answers = run.resolver.answers
    while not (answers.is_played() or answers.is_stopped):
        left = asyncio.all_tasks() - before
        if not left:
            return
        await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)


async def _nothing() -> Any:
    raise ReplayMiss("a request can't come in live")


async def replay_request(app: App, state: dict[str, Any] | None = None) -> None:
    """Replay the current recorded request through an application; the session keeps any differences."""
    await play_request(lambda run, lane: _Replayed(run, lane).serve(app, state))


async def play_request(play: Callable[[Run, Lane], Awaitable[None]]) -> None:
    """Play the current recorded request on a loop, in the unit's lane, and let its tasks make their remaining calls."""
    run = active_run()
    if run is None:
        raise AssertionError("only a replay has a recorded request")
    extent = run.resolver.answers.extent
    lane = Lane(LANE if extent is None else extent.lane)
    try:
        await await_start(run)
        before = asyncio.all_tasks()
        with inside_lane(lane):
            await play(run, lane)
            if extent is not None and extent.lane == lane.path:
                extent.is_over = True
            await await_left(run, before)
    except BaseException as exc:
        if not is_missed(exc):
            raise  # otherwise the session has noted it
