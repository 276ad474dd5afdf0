"""Replays a recorded request in a Sanic application, on a connection without a client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import Any

from spanreplay.model.call import Effect
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.runtime.lanes import Lane, inside_lane
from spanreplay.runtime.run import Run
from spanreplay.units import given
from spanreplay.units.aiohttp_web.values import Connection, build_head
from spanreplay.units.asgi import play_request
from spanreplay.units.asgi_messages import cut_body
from spanreplay.units.http_exchange import BODY, CANCELLED, DISCONNECT, KIND, REQUEST
from spanreplay.units.sanic_web.exchange import IS_LATE, PARTS_TAKEN, Exchange

__all__ = ["ReplayedExchange", "replay_request_of"]


async def replay_request_of(make_protocol: Callable[[], Any]) -> None:
    """Replay the current recorded request through a server's application; the session keeps any differences."""
    await play_request(lambda run, lane: ReplayedExchange(run, lane).play(make_protocol()))


class ReplayedExchange(Exchange):
    """A request whose client is a recording. Its calls may raise ReplayMiss."""

    current: ReplayedExchange | None = None
    """The request that is being replayed: a replay has one at a time."""

    def __init__(self, run: Run, lane: Lane) -> None:
        super().__init__(None, lane)
        self._run = run
        self._parts: list[bytes] = []
        self._is_body_served = False
        self._taken = -1
        """How many parts of the response were written before the client disconnected; -1 if it didn't."""
        self._has_moved = asyncio.Event()
        self._is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def play(self, protocol: Any) -> None:
        """Pass the request to the server and compare its response. Raises: ReplayMiss."""
        described = given.put_request(await self._serve(REQUEST))
        gone = self._find(DISCONNECT)
        self._taken = -1 if gone is None else int((gone or {}).get(PARTS_TAKEN, 0))
        ReplayedExchange.current = self
        protocol.connection_made(_SanicConnection(described, protocol))
        connected = protocol._task
        known = {DISCONNECT: self._go_away, CANCELLED: self._cancel}
        beside = [asyncio.create_task(act(protocol)) for name, act in known.items() if self._find(name) is not None]
        protocol.data_received(build_head(described))
        over = asyncio.ensure_future(self._is_over)
        await asyncio.wait((over, connected), return_when=asyncio.FIRST_COMPLETED)
        if connected.done() and not connected.cancelled() and connected.exception() is not None:
            connected.result()
        await self._is_over
        await asyncio.gather(*beside)
        if not connected.done():
            connected.cancel()

    def take(self, http: Any) -> None:
        """Take the server's object for the connection."""
        self.http = http
        http._receive_more = self._feed

    async def _feed(self) -> None:
        """Feed the next part of the body; without one, wait until the server gives the request up."""
        if not self._parts:
            await self.http.protocol.receive_more()
            return
        self.http.recv_buffer += self._parts.pop(0)

    async def read(self, read: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        if not self._is_body_served:
            self._is_body_served = True
            is_recorded = self._find(BODY) is not None
            if is_recorded or given.has_body():
                body = given.put_body(await self._serve(BODY) if is_recorded else {})
                self._parts = [part for part in cut_body(body) if part]
                if body.get("is_complete", True):
                    self.http.request_body = True  # without the frames of chunks
                    self.http.recv_buffer.clear()
                    self.http.request_bytes = self.http.request_bytes_left = sum(map(len, self._parts))
        return await read()

    async def before_part(self) -> None:
        """Block writes beyond the number of parts written before the client disconnected."""
        while not self.is_gone and 0 <= self._taken <= self.response.parts:
            self._has_moved.clear()
            await self._has_moved.wait()

    def send(self, wire: bytes) -> None:
        super().send(wire)
        self._has_moved.set()

    async def _go_away(self, protocol: Any) -> None:
        await self._serve(DISCONNECT)
        while self.session is None and self.response.parts < self._taken:
            self._has_moved.clear()
            await self._has_moved.wait()
        self.is_gone = True
        self._has_moved.set()
        protocol.transport.close()
        protocol.connection_lost(None)

    async def _cancel(self, protocol: Any) -> None:
        """Cancel the application where the server cancelled it."""
        has_taken_too_long = (await self._serve(CANCELLED) or {}).get(IS_LATE)
        if has_taken_too_long:
            self.http.exception = import_module("sanic.exceptions").ServiceUnavailable("Response Timeout")
        if protocol._task is not None:
            protocol._task.cancel()

    def end(self) -> None:
        if self._is_over.done():
            return
        try:
            self.record()
        except BaseException as exc:
            self._is_over.set_exception(exc)
            raise
        self._is_over.set_result(None)

    def _find(self, name: str) -> Any:
        """Return a recorded call's result, {} if it has none; None if there is no such call."""
        call = self._run.resolver.answers.index.at(self.lane.path, f"{KIND}:{name}", 0)
        return None if call is None else json.loads(call.response)["value"] or {}

    async def _serve(self, name: str) -> Any:
        with inside_lane(self.lane):
            return await call_async(lambda: FunctionCall(KIND, name, Effect.READ.value, {}, prints=False), _nothing)


class _SanicConnection(Connection):
    """A transport with the members that Sanic uses."""

    def __init__(self, described: Mapping[str, Any], protocol: Any) -> None:
        super().__init__(described)
        self._protocol = protocol
        self.loop = protocol.loop

    def get_protocol(self) -> Any:
        """Return the server's protocol."""
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """No-op: written data is discarded."""

    def get_write_buffer_size(self) -> int:
        """Return 0: written data is discarded."""
        return 0


async def _nothing() -> Any:
    raise ReplayMiss("a request can't come in live")
