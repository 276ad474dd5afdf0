"""Seam: `aiohttp.ClientSession._request`. One request is one call; its redirects are its hops.

The session's own code runs in a replay too (redirects, cookies, middlewares, `raise_for_status`, traces): only the
connection is replaced, by one that receives the recorded heads and reads bodies from the recording. The call is opened
when the session asks its connector for a connection, because the request is built only then.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run
from spanreplay.runtime.wire.http_body import ServedBody
from spanreplay.runtime.wire.http_call import HttpCall, begin_call, is_passed_on, is_recording
from spanreplay.runtime.wire.http_reply import HttpReply
from spanreplay.runtime.wire.sent_body import Taken, take_async_pieces, take_body
from spanreplay.runtime.wire.timeouts import Timeout, read_aiohttp_timeout
from spanreplay.seams.transport.aiohttp_errors import AiohttpCall
from spanreplay.seams.transport.aiohttp_streams import StoredConnector, StoredTransport, Streams, build_streams

_CONNECT, _START = "connect", "start"


class _Request:
    """One `_request` in progress; `call` is None until a connection is requested."""

    def __init__(self, timeout: Timeout | None) -> None:
        self.timeout = timeout
        self.is_begun = False
        self.call: HttpCall | None = None


_DEFAULT: Final = object()
_current: ContextVar[_Request | None] = ContextVar("spanreplay_aiohttp_request", default=None)


class AiohttpSeam:
    """The seam for the module `aiohttp`."""

    def __init__(self, aiohttp: Any) -> None:
        self._aiohttp = aiohttp
        self._streams: Streams = build_streams(aiohttp)

    def install(self, patches: Patches) -> None:
        """Wrap the session, its connectors and its responses. Raises: AttributeError if they are not as expected."""
        patches.wrap(self._aiohttp.ClientSession, "_request", self._request)
        patches.wrap(self._aiohttp.BaseConnector, "connect", self._connect)
        patches.wrap(self._aiohttp.ClientResponse, "start", self._start)
        for name in ("release", "close"):
            patches.wrap(self._aiohttp.connector.Connection, name, _let_go)

    async def _request(self, wrapped: Any, session: Any, args: Any, kwargs: Any) -> Any:
        if not is_recording():
            return await wrapped(*args, **kwargs)
        given = read_aiohttp_timeout(kwargs.get("timeout", _DEFAULT))
        request = _Request(read_aiohttp_timeout(session.timeout) if given is None else given)
        token = set_variable(_current, request)
        try:
            response = await wrapped(*args, **kwargs)
        except BaseException as exc:
            if request.call is not None:
                request.call.failed(exc)
            raise
        finally:
            reset_variable(_current, token)
        if request.call is not None:
            request.call.returned()
        return response

    async def _connect(self, wrapped: Any, connector: Any, args: Any, kwargs: Any) -> Any:
        current = _current.get()
        if current is None:
            return await wrapped(*args, **kwargs)
        req = args[0] if args else kwargs["req"]
        if not current.is_begun:
            current.is_begun = True
            current.call = await self._begin(req, current.timeout)
        call = current.call
        if call is None:
            return await wrapped(*args, **kwargs)
        if call.is_served:
            connect = partial(self._connect_stored, call, req, connector)
        else:
            connect = partial(_connect_live, call, wrapped, args, kwargs)
        return await call.aattempt(_CONNECT, connect)

    async def _begin(self, req: Any, timeout: Timeout | None) -> HttpCall | None:
        run = active_run()
        if "websocket" in req.headers.get("upgrade", "").lower():
            if run is not None and run.resolver.keeps:
                run.hole(f"a websocket of aiohttp ({req.url.host}) was not recorded")
            return None
        if is_passed_on():
            return None
        body = await _take_body(req)
        headers = [(str(k), str(v)) for k, v in req.headers.items()]
        url = str(req.url)
        call = begin_call(req.method, url, headers, body, timeout=timeout, is_stream=True, call_class=AiohttpCall)
        if call is not None and call.patched is not None:
            await self._change_body(call, req, call.patched)
        return call

    @staticmethod
    async def _change_body(call: HttpCall, req: Any, body: bytes) -> None:
        """Change the body of a request that is already built. Raises: ReplayMiss if aiohttp can't."""
        if not hasattr(req, "update_body"):  # before aiohttp 3.12.14
            raise call.broken("this version of aiohttp can't change a request on its way: set its response instead")
        req.headers.pop("Transfer-Encoding", None)
        req.chunked = None
        req.headers["Content-Length"] = str(len(body))
        await req.update_body(body)

    async def _connect_stored(self, call: HttpCall, req: Any, connector: Any) -> Any:
        if call.failing_at == _CONNECT:
            await call.anext_reply()
        loop = asyncio.get_running_loop()
        protocol = self._aiohttp.client_proto.ResponseHandler(loop)
        protocol.connection_made(StoredTransport(protocol))
        stored: Any = StoredConnector(connector)
        return self._aiohttp.connector.Connection(stored, req.connection_key, protocol, loop)

    async def _start(self, wrapped: Any, response: Any, args: Any, kwargs: Any) -> Any:
        current = _current.get()
        call = current.call if current is not None else None
        if call is None:
            return await wrapped(*args, **kwargs)
        call.asked = {"request_info": response.request_info, "history": response.history}
        if call.is_served:
            connection = args[0] if args else kwargs["connection"]
            start = partial(self._start_stored, wrapped, call, response, connection)
        else:
            start = partial(self._start_live, wrapped, call, response, args, kwargs)
        return await call.aattempt(_START, start)

    async def _start_live(self, wrapped: Any, call: HttpCall, response: Any, args: Any, kwargs: Any) -> Any:
        with call.waiting():
            started = await wrapped(*args, **kwargs)
        guard.guarded("recording a response", self._note, call, response)
        return started

    def _note(self, call: HttpCall, response: Any) -> None:
        version = response.version
        reply = HttpReply(
            status=response.status,
            reason=response.reason or "",
            http_version=f"HTTP/{version.major}.{version.minor}",
            headers=[
                (k.decode("utf-8", "surrogateescape"), v.decode("utf-8", "surrogateescape"))
                for k, v in response.raw_headers
            ],
            url=str(response.url),
        )
        body = call.answered(reply)
        if response.content is self._aiohttp.streams.EMPTY_PAYLOAD:
            body.finish("complete", is_alone=False)
        else:
            response.content = self._streams.tee(response.content, body)

    async def _start_stored(self, wrapped: Any, call: HttpCall, response: Any, connection: Any) -> Any:
        try:
            with response._timer:  # as in `start`: it ends the wait if the session's total timeout does
                reply = await call.anext_reply()
        except asyncio.TimeoutError:
            if call.failing_at is not None:
                raise call.take_failure() from None
            raise
        protocol = connection.protocol
        protocol.data_received(_write_head(reply))
        started = await wrapped(connection)
        if response.content is self._aiohttp.streams.EMPTY_PAYLOAD:
            call.stream_over(reply)
        else:
            response.content = self._streams.stored(protocol, call, reply)
            response.content.on_eof(response._response_eof)
            self._streams.settle(response.content)
            response.content = self._streams.tee(response.content, ServedBody(call, reply))
        return started


async def _connect_live(call: HttpCall, wrapped: Any, args: Any, kwargs: Any) -> Any:
    with call.live():
        return await wrapped(*args, **kwargs)


def _let_go(wrapped: Any, connection: Any, args: Any, kwargs: Any) -> Any:
    """Release a connection; callbacks that the event loop runs for this don't count as the agent's."""
    with plumbing():
        return wrapped(*args, **kwargs)


async def _take_body(req: Any) -> Taken:
    """Return a request's body, which can still be sent. Exceptions of the agent's own iterator propagate unchanged."""
    body = req.body
    pieces, file = getattr(body, "_iter", None), getattr(body, "_value", body)
    if pieces is not None:  # an asynchronous iterator
        taken, first, rest = await take_async_pieces(pieces)
        body._iter = rest if rest is not None else _give(first)
        return taken
    if isinstance(file, io.IOBase) and not isinstance(file, io.TextIOBase):
        taken, to_send = take_body(file)
        if to_send is not file:
            body._value = to_send
        return taken
    if hasattr(body, "as_bytes"):
        whole: bytes = await body.as_bytes()
        return whole
    return take_body(file)[0]


async def _give(pieces: list[Any]) -> AsyncIterator[Any]:
    for piece in pieces:
        yield piece


def _write_head(reply: HttpReply) -> bytes:
    lines = [f"{reply.http_version} {reply.status} {reply.reason}", *(f"{k}: {v}" for k, v in reply.headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")


def install(module: Any, patches: Patches) -> None:
    """Patch aiohttp."""
    AiohttpSeam(module).install(patches)
