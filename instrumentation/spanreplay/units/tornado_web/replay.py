"""Replays a recorded request in a Tornado application, on a connection without a client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from spanreplay.model.call import Effect
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.runtime.lanes import Lane, inside_lane
from spanreplay.runtime.run import Run
from spanreplay.units import given
from spanreplay.units.asgi import play_request
from spanreplay.units.asgi_messages import cut_body
from spanreplay.units.asgi_websocket import record_end
from spanreplay.units.http_exchange import BODY, DISCONNECT, KIND, REQUEST
from spanreplay.units.tornado_web.exchange import PARTS_TAKEN, TAKEN_OVER, Exchange
from spanreplay.units.tornado_web.session import SilentStream

__all__ = ["ReplayedExchange", "replay_request_of"]


async def replay_request_of(server: Any) -> None:
    """Replay the current recorded request through a server's application; the session keeps any differences."""
    await play_request(lambda run, lane: ReplayedExchange(run, lane).play(server))


class ReplayedExchange(Exchange):
    """A connection whose client is a recording."""

    def __init__(self, run: Run, lane: Lane) -> None:
        super().__init__()
        self._run, self._lane = run, lane
        self._on_close: Any = None
        self._taken = -1
        """How many parts of the response were written before the client disconnected; -1 if it didn't."""
        self._is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._has_left = asyncio.Event()
        self._has_moved = asyncio.Event()
        self.context: Any = None
        self.stream = self.no_keep_alive = None

    async def play(self, server: Any) -> None:
        """Pass the request to the application and compare its response. Raises: ReplayMiss."""
        described = given.put_request(await self._serve(REQUEST))
        httputil: Any = import_module("tornado.httputil")
        self.context = _make_context(server, described)
        query = f"?{described['query_string']}" if "query_string" in described else ""
        version = f"HTTP/{described['http_version']}"
        line = httputil.RequestStartLine(described["method"], described["raw_path"] + query, version)
        headers = httputil.HTTPHeaders()
        for each in described["headers"]:
            for name, value in each.items():
                headers.add(name, value)
        delegate = server.start_request(None, self)
        await _settle(delegate.headers_received(line, headers))
        await self._give_body(delegate)
        gone = self._find(DISCONNECT)
        going = None
        if gone is not None:
            self._taken = int((gone or {}).get(PARTS_TAKEN, 0))
            going = asyncio.create_task(self._go_away())
        delegate.finish()
        await self._is_over
        await self._has_left.wait()
        if self.is_gone:
            self.response.record(self.raised)
        if self.is_session:
            record_end(self.raised)
        if going is not None:
            await going

    async def _give_body(self, delegate: Any) -> None:
        is_recorded = self._find(BODY) is not None
        if is_recorded or given.has_body():
            for part in cut_body(given.put_body(await self._serve(BODY) if is_recorded else {})):
                await _settle(delegate.data_received(part))

    async def _go_away(self) -> None:
        await self._serve(DISCONNECT)
        while self.response.parts < self._taken:
            self._has_moved.clear()
            await self._has_moved.wait()
        self.is_gone = True
        if not self._is_over.done():
            self._is_over.set_result(None)
        if self._on_close is not None:
            self._on_close()

    def write_headers(self, start_line: Any, headers: Any, chunk: Any = None) -> Any:
        """Begin the response."""
        if not self.is_gone:
            self._begin(start_line, headers, chunk)
        return self._pass()

    def write(self, chunk: Any) -> Any:
        """Write a part of the response."""
        if not self.is_gone:
            self._add(chunk)
        return self._pass()

    def _pass(self) -> asyncio.Future[None]:
        """Return what Tornado's writes return: a future that is done, or failed if the client has gone."""
        self._has_moved.set()
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.is_gone:
            iostream: Any = import_module("tornado.iostream")
            written.set_exception(iostream.StreamClosedError())
            written.exception()
        else:
            written.set_result(None)
        return written

    def finish(self) -> None:
        """Complete the response, and compare it."""
        if self.is_gone or self._is_over.done():
            return
        self.response.is_complete = True
        try:
            with inside_lane(self._lane):
                self.response.record(self.raised)
        except BaseException as exc:
            self._is_over.set_exception(exc)
            raise
        self._is_over.set_result(None)

    def set_close_callback(self, callback: Any) -> None:
        """Keep the callback for a client that goes away."""
        self._on_close = callback

    def set_max_body_size(self, size: int) -> None:
        """No-op: the whole body is here."""

    def set_body_timeout(self, timeout: float) -> None:
        """No-op: the whole body is here."""

    @contextmanager
    def inside(self) -> Iterator[None]:
        with inside_lane(self._lane):
            yield

    def detach(self) -> Any:
        """Return a connection without a client; end the replay if the handler wants one for anything but a session."""
        if self.is_session:
            return SilentStream()
        missing = self._run.resolver.answers.stop(TAKEN_OVER)
        if not self._is_over.done():
            self._is_over.set_exception(missing)
        raise missing

    def leave(self) -> None:
        self._has_left.set()

    def _find(self, name: str) -> Any:
        """Return a recorded call's result, {} if it has none; None if there is no such call."""
        call = self._run.resolver.answers.index.at(self._lane.path, f"{KIND}:{name}", 0)
        return None if call is None else json.loads(call.response)["value"] or {}

    async def _serve(self, name: str) -> Any:
        with inside_lane(self._lane):
            return await call_async(lambda: FunctionCall(KIND, name, Effect.READ.value, {}, prints=False), _nothing)


def _make_context(server: Any, described: Mapping[str, Any]) -> Any:
    """Return what Tornado keeps of a connection, with its own handling of a proxy's headers."""
    httpserver: Any = import_module("tornado.httpserver")
    socket: Any = import_module("socket")
    address = described.get("client")
    is_inet = isinstance(address, list)
    stream = SimpleNamespace(socket=SimpleNamespace(family=socket.AF_INET if is_inet else socket.AF_UNIX))
    place = tuple(address) if isinstance(address, list) else address
    return httpserver._HTTPRequestContext(stream, place, described["scheme"], server.trusted_downstream)


async def _settle(waiting: Any) -> None:
    if waiting is not None:
        await waiting


async def _nothing() -> Any:
    raise ReplayMiss("a request can't come in live")
