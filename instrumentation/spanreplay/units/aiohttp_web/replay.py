"""Replays a recorded request in aiohttp's own server, on a simulated connection, and compares the response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from spanreplay.model.call import Effect
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.runtime.lanes import Lane, inside_lane
from spanreplay.runtime.run import Run, active_run
from spanreplay.units import given
from spanreplay.units.aiohttp_web.exchange import PARTS_TAKEN, Exchange
from spanreplay.units.aiohttp_web.values import IS_BODY_HERE, Connection, build_head
from spanreplay.units.asgi import await_left
from spanreplay.units.asgi_messages import cut_body
from spanreplay.units.http_exchange import BODY, CANCELLED, DISCONNECT, KIND, REQUEST
from spanreplay.units.start import await_start
from spanreplay.units.stated import LANE

__all__ = ["ReplayedExchange", "replay_request_of"]


async def replay_request_of(server: Any) -> None:
    """Replay the current recorded request through a server's application; the session keeps any differences."""
    run = active_run()
    if run is None:
        raise AssertionError("only a replay has a recorded request")
    extent = run.resolver.answers.extent
    lane = Lane(LANE if extent is None else extent.lane)
    try:
        await await_start(run)
        before = await ReplayedExchange(run, server(), lane).play()
        if extent is not None and extent.lane == lane.path:
            extent.is_over = True
        with inside_lane(lane):
            await await_left(run, before)
    except ReplayMiss:
        return  # the session has noted it


class ReplayedExchange(Exchange):
    """Replays one recorded request. Its calls may raise ReplayMiss."""

    def __init__(self, run: Run, protocol: Any, lane: Lane) -> None:
        super().__init__(protocol, lane)
        self._run = run
        self._parts: list[bytes] = []
        self._is_body_served = False
        self._is_body_whole = True
        self._is_body_here = False
        self._taken = -1
        """How many parts of the response were written before the client disconnected; -1 if it didn't."""
        self._working: asyncio.Task[Any] | None = None
        self._has_moved = asyncio.Event()
        """Set when a part is written, and when the client disconnects."""
        self._is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def play(self) -> set[asyncio.Task[Any]]:
        """Pass the request to the server; return the tasks that don't belong to the application. Raises: ReplayMiss."""
        described = given.put_request(await self._serve(REQUEST))
        gone = self._find(DISCONNECT)
        self._taken = -1 if gone is None else int((gone or {}).get(PARTS_TAKEN, 0))
        self.protocol.connection_made(Connection(described))
        beside = [asyncio.create_task(work()) for name, work in self._beside().items() if self._find(name) is not None]
        self._is_body_here = bool(described.get(IS_BODY_HERE))
        self.protocol.data_received(build_head(described))
        before = asyncio.all_tasks()
        try:
            await self._is_over
        finally:
            for each in beside:
                each.cancel()
            self.leave()
            self.protocol.force_close()
        return before

    def _beside(self) -> dict[str, Callable[[], Any]]:
        return {DISCONNECT: self._go_away, CANCELLED: self._cancel}

    async def serve(self, handle: Callable[..., Awaitable[Any]], request: Any, *args: Any) -> Any:
        """Let the server call its application, after feeding a body that had arrived before the call."""
        raised: BaseException | None = None
        result = None
        self._working = asyncio.current_task()
        try:
            with inside_lane(self.lane):
                self.watch(request)
                if self._is_body_here:
                    await self._feed()
                    while self._parts:
                        await self._feed()
                try:
                    result = await handle(request, *args)
                except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001 -- the server would have received it
                    raised = exc
                self._record(raised)
        except BaseException as exc:
            self._end(exc)
            raise
        self._end(None)
        if raised is not None:
            raise raised
        return result

    def _end(self, exc: BaseException | None) -> None:
        if self._is_over.done():
            return
        if exc is None:
            self._is_over.set_result(None)
        else:
            self._is_over.set_exception(exc)

    # ── the body ────────────────────────────────────────────────────────────────────────────────────
    async def wait(self, wrapped: Callable[..., Awaitable[None]], *args: Any) -> None:
        if self._is_body_served and not self._parts and not self._is_body_whole:
            await wrapped(*args)  # until the client disconnects
        else:
            await self._feed()

    async def _feed(self) -> None:
        """Feed the next part of the body to the reader."""
        if not self._is_body_served:
            self._is_body_served = True
            described = {} if self._find(BODY) is None else await self._serve(BODY)
            described = given.put_body(described)
            self._parts = cut_body(described) if described else []
            self._is_body_whole = described.get("is_complete", True) or self._taken < 0
        part = self._parts.pop(0) if self._parts else b""
        if part:
            self.reader.feed_data(part)
        if not self._parts and self._is_body_whole:
            self.reader.feed_eof()

    # ── the client ──────────────────────────────────────────────────────────────────────────────────
    async def before_part(self) -> None:
        """Block writes beyond the number of parts written before the client disconnected."""
        self._has_moved.set()
        while not self.is_gone and self.response.parts == self._taken:
            self._has_moved.clear()
            await self._has_moved.wait()

    def _add(self, chunk: Any) -> None:
        super()._add(chunk)
        self._has_moved.set()

    async def _go_away(self) -> None:
        await self._serve(DISCONNECT)
        while self.response.parts < self._taken and not self._is_over.done():
            self._has_moved.clear()
            await self._has_moved.wait()
        self.is_gone = True
        self._has_moved.set()
        self.protocol.connection_lost(None)

    async def _cancel(self) -> None:
        """Cancel the application where the server cancelled it."""
        await self._serve(CANCELLED)
        if self._working is not None:
            self._working.cancel()

    # ── the recording ───────────────────────────────────────────────────────────────────────────────
    def _find(self, name: str) -> Any:
        """Return a recorded call's result, {} if it has none; None if there is no such call."""
        call = self._run.resolver.answers.index.at(self.lane.path, f"{KIND}:{name}", 0)
        return None if call is None else json.loads(call.response)["value"] or {}

    async def _serve(self, name: str) -> Any:
        with inside_lane(self.lane):
            return await call_async(lambda: FunctionCall(KIND, name, Effect.READ.value, {}, prints=False), _nothing)


async def _nothing() -> Any:
    raise ReplayMiss("a request can't come in live")
