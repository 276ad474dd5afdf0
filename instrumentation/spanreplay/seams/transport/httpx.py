"""Seam: `Client.send` and `AsyncClient.send` of httpx and of its successor httpx2.

It lies above the socket and below the SDK: each call is separate under HTTP/2 and asyncio, chunks are recorded as the
agent consumes them, and in a replay the SDK itself rebuilds its typed objects, streams, headers and errors.

One call is one `send`. The client's own code runs in a replay too (hooks, redirects, authentication, cookies, its log
line): only the transport below it is replaced.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any, Final

from spanreplay.runtime.calls.open_call import is_plumbing, is_suppressed
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.own_ports import asks_own, serves
from spanreplay.runtime.run import Run, active_run
from spanreplay.runtime.wire.http_wire import is_for_a_model
from spanreplay.runtime.wire.sent_body import LargeBody, Taken, is_replaying, take_async_pieces, take_pieces
from spanreplay.runtime.wire.telemetry import answer_report, is_telemetry
from spanreplay.seams.transport.httpx_call import HttpxCall
from spanreplay.seams.transport.httpx_wires import RecordingTransport, ReplayTransport, build_streams

_TEST_CLIENT: Final = "_TestClientTransport"
"""The class name of the transport of `starlette.testclient` and `fastapi.testclient`."""


class HttpxSeam:
    """The seam for one of the two modules, passed as `hx`."""

    def __init__(self, hx: Any) -> None:
        self.hx = hx
        self.streams = build_streams(hx)
        self._apps = (hx.ASGITransport, hx.WSGITransport)
        self._in_process = (hx.ASGITransport, hx.WSGITransport, hx.MockTransport)

    def install(self, patches: Patches) -> None:
        """Wrap both clients. Raises: AttributeError if they are not as expected."""
        for client, send in ((self.hx.Client, self.send), (self.hx.AsyncClient, self.asend)):
            patches.wrap(client, "send", send)
            patches.wrap(client, "_transport_for_url", self.choose_transport)

    def choose_transport(self, wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        """Return the transport of the current call, or the client's own."""
        call = _current.get()
        if call is None or call.hx is not self.hx:
            return wrapped(*args, **kwargs)
        if call.is_served:
            return ReplayTransport(call)
        inner = wrapped(*args, **kwargs)
        return RecordingTransport(inner, call, is_in_process=isinstance(inner, self._in_process))

    def send(self, wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        """Record or serve `Client.send`."""
        run = active_run()
        if run is None:
            return wrapped(*args, **kwargs)
        request = args[0] if args else kwargs["request"]
        if self._is_black_hole(run, request):
            return self._answer_report(request)
        if self._is_passed(run, request) or not isinstance(request.stream, self.hx.SyncByteStream):
            with _carrying(None):
                return wrapped(*args, **kwargs)
        body = self._read_sent(request)
        if self._asks_own_app(client, request, body):
            with _carrying(None):
                return wrapped(*args, **kwargs)
        call = HttpxCall(self.hx, self.streams, request, body, is_stream=bool(kwargs.get("stream")))
        crossing = call.crossing if call.open(is_for_model=_is_suppressed_model(request, body)) else None
        if crossing is None:
            with _carrying(None):
                return wrapped(*args, **kwargs)
        args, kwargs = call.replace_request(args, kwargs)
        try:
            call.wait()
            with crossing, _carrying(call):
                call.load()
                response = wrapped(*args, **kwargs)
        except BaseException as exc:
            call.failed(exc)
            raise
        call.note_returned(response)
        return response

    async def asend(self, wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        """Record or serve `AsyncClient.send`."""
        run = active_run()
        if run is None:
            return await wrapped(*args, **kwargs)
        request = args[0] if args else kwargs["request"]
        if self._is_black_hole(run, request):
            return self._answer_report(request)
        if self._is_passed(run, request) or not isinstance(request.stream, self.hx.AsyncByteStream):
            with _carrying(None):
                return await wrapped(*args, **kwargs)
        body = await self._aread_sent(request)
        if self._asks_own_app(client, request, body):
            with _carrying(None):
                return await wrapped(*args, **kwargs)
        call = HttpxCall(self.hx, self.streams, request, body, is_stream=bool(kwargs.get("stream")))
        crossing = call.crossing if call.open(is_for_model=_is_suppressed_model(request, body)) else None
        if crossing is None:
            with _carrying(None):
                return await wrapped(*args, **kwargs)
        args, kwargs = call.replace_request(args, kwargs)
        try:
            await call.wait_async()
            with crossing, _carrying(call):
                call.load()
                response = await wrapped(*args, **kwargs)
        except BaseException as exc:
            call.failed(exc)
            raise
        call.note_returned(response)
        return response

    def _read_sent(self, request: Any) -> Taken:
        """Read a request's body, which can still be sent; exceptions of the user's own iterator propagate unchanged."""
        if hasattr(request, "_content") or is_replaying():
            whole: bytes = request.read()
            return whole
        body, pieces = take_pieces(iter(request.stream))
        self._replace_stream(request, body, pieces)
        return body

    async def _aread_sent(self, request: Any) -> Taken:
        if hasattr(request, "_content") or is_replaying():
            whole: bytes = await request.aread()
            return whole
        body, _, pieces = await take_async_pieces(aiter(request.stream))
        self._replace_stream(request, body, pieces)
        return body

    def _replace_stream(self, request: Any, body: Taken, pieces: Any) -> None:
        if isinstance(body, LargeBody):
            request.stream = self.streams.sent(pieces)
        else:  # as `Request.read` does
            request._content = body
            request.stream = self.hx.ByteStream(body)

    @staticmethod
    def _is_passed(run: Run, request: Any) -> bool:
        return is_plumbing(run) or is_telemetry(request.method, request.url.host, request.url.path)

    def _asks_own_app(self, client: Any, request: Any, body: Taken) -> bool:
        """Whether an application in this process answers, other than a model provider's."""
        url, transport = request.url, client._transport_for_url(request.url)
        is_app = isinstance(transport, self._apps) and _is_made_up(url.host)
        is_here = is_app or type(transport).__name__ == _TEST_CLIENT or (serves() and asks_own(url.host, url.port))
        return is_here and not is_for_a_model(request.method, str(request.url), body)

    def _answer_report(self, request: Any) -> Any:
        headers, body = answer_report(request.method, request.url.path)
        return self.hx.Response(200, request=request, headers=headers, content=body)

    @staticmethod
    def _is_black_hole(run: Run, request: Any) -> bool:
        swallows = run.resolver.swallows_telemetry
        if not swallows or is_telemetry(request.method, request.url.host, request.url.path):
            return swallows
        body = vars(request).get("_content", b"")  # one that is a stream is no model's
        return is_suppressed() and not is_for_a_model(request.method, str(request.url), body)


def _is_suppressed_model(request: Any, body: Taken) -> bool:
    """Whether this is a model request although instrumentation is suppressed here."""
    return is_suppressed() and is_for_a_model(request.method, str(request.url), body)


def _is_made_up(host: str) -> bool:
    """Whether a host is an invented name like `test`, so not a stand-in for a server elsewhere."""
    return "." not in host and ":" not in host and host != "localhost"


_current: ContextVar[HttpxCall | None] = ContextVar("spanreplay_httpx_call", default=None)


class _carrying:  # noqa: N801 -- reads as a statement: `with _carrying(call):`
    """Within this block, requests use the call's transport; None: the client's own."""

    __slots__ = ("_call", "_token")

    def __init__(self, call: HttpxCall | None) -> None:
        self._call = call
        self._token: Token[HttpxCall | None] | None = None

    def __enter__(self) -> None:
        self._token = set_variable(_current, self._call)

    def __exit__(self, *exc_info: object) -> None:
        if self._token is not None:
            reset_variable(_current, self._token)


def install(module: Any, patches: Patches) -> None:
    """Patch httpx or httpx2."""
    HttpxSeam(module).install(patches)
