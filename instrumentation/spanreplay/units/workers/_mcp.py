"""Unit: an MCP server on standard input and output. Each tool call, prompt and resource served is its own run.

A request over HTTP remains a unit of its HTTP server, and a request to a server in the agent's own process remains part
of the agent's run. In a replay the server starts, and the recording is its client: it receives the handshake and the
recorded request, after the earlier ones of a warm-up, and nothing is read from standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Outcome
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.caller.running import within_unit
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.lanes import Lane, inside_lane
from spanreplay.runtime.run import active_run
from spanreplay.units import factory
from spanreplay.units.jobs import (
    Ended,
    await_input,
    find_replay_of_job,
    is_replay,
    keep_encodable,
    not_here,
    record_job_async,
    work_job_async,
)
from spanreplay.units.play import end_replay, iter_units
from spanreplay.units.start import await_start
from spanreplay.units.stated import GIVEN, LANE

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_TOOL, _TOOLS = "tools/call", "tools/list"
_SERVED: Final = frozenset({_TOOL, "prompts/get", "resources/read", "completion/complete"})
"""Requests that run a server's own code with a client's input."""
_INITIALIZE: Final = "initialize"
_PROTOCOL: Final = "io.modelcontextprotocol/protocolVersion"
"""Member of a request's `_meta` in the protocol without a handshake."""
_BAGGAGE: Final = "baggage"
_is_own: Final[contextvars.ContextVar[bool]] = contextvars.ContextVar("spanreplay_mcp_server", default=False)
"""Whether the served request arrived on this process's standard input."""
_recorded: Final[contextvars.ContextVar[_Recorded | None]] = contextvars.ContextVar(
    "spanreplay_mcp_client", default=None
)
"""In a replay: who sent the served request."""


def install(module: Any, patches: Patches) -> None:
    """Patch the transport, or the runner that answers requests."""
    if module.__name__ == "mcp.server.runner":
        patches.wrap(module.ServerRunner, "_on_request", _answer)
    elif find_spec("mcp.server.runner") is not None:  # not mcp 1
        patches.wrap(module, "stdio_server", _open)


def _open(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> AbstractAsyncContextManager[Any]:
    return _replayed() if is_replay() else _marked(wrapped(*args, **kwargs))


@asynccontextmanager
async def _marked(inner: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
    token = set_variable(_is_own, True)
    try:
        async with inner as streams:
            yield streams
    finally:
        reset_variable(_is_own, token)


async def _answer(wrapped: Any, runner: Any, args: Any, kwargs: Any) -> Any:
    """Answer one request, from any transport."""
    if not _is_own.get():
        return await wrapped(*args, **kwargs)
    named = {**dict(zip(("dctx", "method", "params"), args, strict=False)), **kwargs}
    method, params = named.get("method"), named.get("params") or {}
    if not is_replay():
        guard.guarded("the start of a server", factory.begin_units)
    if method not in _SERVED:
        return await wrapped(*args, **kwargs)
    name = str(params.get("name") or params.get("uri") or method)

    async def work() -> Any:
        return await wrapped(*args, **kwargs)

    client = _recorded.get()
    if client is not None:
        await client.await_answer(lambda: _work(runner, named["dctx"], name, work))
        return {}
    return await record_job_async(
        name, lambda: _describe_input(runner, named["dctx"], method, params), work, _describe_end, _find_headers(params)
    )


def _describe_input(runner: Any, dctx: Any, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    client = runner.connection.client_params
    if client is not None and not _has_envelope(params):
        client = client.model_dump(by_alias=True, mode="json", exclude_none=True)
    else:
        client = None
    return keep_encodable({"method": method, "params": dict(params), "id": dctx.request_id, "client": client})


def _has_envelope(params: Mapping[str, Any]) -> bool:
    return _PROTOCOL in _find_headers(params)


def _find_headers(params: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = params.get("_meta")
    return meta if isinstance(meta, Mapping) else {}


def _describe_end(result: Any) -> Ended:
    is_error = isinstance(result, Mapping) and bool(result.get("isError"))
    return Ended({"result": result}, Outcome.ERROR if is_error else Outcome.OK)


# ── replay ──────────────────────────────────────────────────────────────────────────────────────────
async def _work(runner: Any, dctx: Any, name: str, work: Any) -> Any:
    """Answer the recorded request; report a missing tool as such, not as a changed result."""
    try:
        result = await work()
    except Exception:
        await _look_for(runner, dctx, name)
        raise
    if isinstance(result, Mapping) and result.get("isError"):
        await _look_for(runner, dctx, name)
    return result


async def _look_for(runner: Any, dctx: Any, name: str) -> None:
    run = active_run()
    if run is None or run.resolver.keeps or run.resolver.answers.recording.root.outcome != Outcome.OK.value:
        return
    with contextlib.suppress(Exception):
        listed = await runner._on_request(dctx, _TOOLS, None)
        if all(each.get("name") != name for each in listed["tools"]):
            raise not_here(f"the tool {name!r} is not served any more")


class _Recorded:
    """The client of the recorded requests: sends them one after another once the server has started."""

    def __init__(self) -> None:
        self._lanes: Iterator[str] | None = None
        self._lane = ""
        self._left: list[Any] = []
        self._client: Any = None
        """The client's information in the last handshake; None before the first."""
        self._answered = asyncio.Event()

    async def receive(self) -> Any:
        """Return the next message; a request follows when the one before it is answered. Ends the replay after all."""
        while not self._left:
            await self._take_next()
        return self._left.pop(0)

    async def _take_next(self) -> None:
        run = find_replay_of_job()
        with contextlib.suppress(ReplayMiss):  # the session has noted it
            if self._lanes is None:
                await await_start(run)
                self._lanes = iter_units(run, GIVEN)
            elif self._lane:
                await self._answered.wait()
            self._answered.clear()
            self._lane = next(self._lanes, "")
            if self._lane:
                with inside_lane(Lane(self._lane)):
                    self._left = self._make_messages(await await_input())
                return
        if not self._lane or self._lane == LANE:
            end_replay()
        self._answered.set()

    async def await_answer(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Let the server answer the request sent last, and compare the answer."""
        with within_unit():
            await work_job_async(self._lane, work, _describe_end)
        if self._lane == LANE:
            end_replay()
        self._answered.set()

    def _make_messages(self, given: Mapping[str, Any]) -> list[Any]:
        """Return a request, after the handshake of its client if that one has not been sent yet."""
        from mcp.shared.message import SessionMessage
        from mcp_types import JSONRPCNotification, JSONRPCRequest

        request = JSONRPCRequest(jsonrpc="2.0", id=given["id"], method=given["method"], params=given["params"])
        client = given["client"]
        if client is None or client == self._client:
            return [SessionMessage(request)]
        self._client = client
        greeting = JSONRPCRequest(jsonrpc="2.0", id=_INITIALIZE, method=_INITIALIZE, params=client)
        greeted = JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized")
        return [SessionMessage(each) for each in (greeting, greeted, request)]

    def __aiter__(self) -> _Recorded:
        return self

    async def __anext__(self) -> Any:
        return await self.receive()

    async def aclose(self) -> None:
        """No-op: there is nothing to close."""

    async def __aenter__(self) -> _Recorded:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


class _Silent(_Recorded):
    """The outgoing side, without a client."""

    async def send(self, message: Any) -> None:
        """Discard the message."""


@asynccontextmanager
async def _replayed() -> AsyncIterator[Any]:
    client = _Recorded()
    is_own, recorded = set_variable(_is_own, True), set_variable(_recorded, client)
    try:
        yield client, _Silent()
    finally:
        reset_variable(_recorded, recorded)
        reset_variable(_is_own, is_own)
