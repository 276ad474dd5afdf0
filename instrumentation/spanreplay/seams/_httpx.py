"""Seam: `Client.send` and `AsyncClient.send` of httpx and of its successor httpx2.

Above the socket and below the SDK: each call is separate under HTTP/2 and asyncio, chunks are recorded as the agent
consumes them, and in a replay the SDK itself rebuilds its typed objects, streams, headers and errors.

One call is one `send`. The client's own machinery runs in a replay too (hooks, redirects, authentication, cookies,
its log line): only the transport below it is exchanged.
"""

from __future__ import annotations

import contextlib
from collections import deque
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from spanreplay import codec, guard, ids
from spanreplay._patch import Patches
from spanreplay.call import Outcome
from spanreplay.crossing import Crossing, begin, is_plumbing
from spanreplay.errors import ReplayMiss, SpanreplayError, Unserializable
from spanreplay.lanes import inside_call
from spanreplay.own_servers import is_own
from spanreplay.replay.cancel import await_cancellation
from spanreplay.replay.turns import RESPONSE, WHOLE, await_turn, end_stream, wait_turn
from spanreplay.run import Run, active_run
from spanreplay.seams._httpx_bodies import decode_chunks
from spanreplay.seams._httpx_wires import RecordingTransport, ReplayTransport, build_streams
from spanreplay.seams.http_reply import HttpReply, Truncated, decode_reply
from spanreplay.seams.http_wire import (
    HttpExchange,
    describe_request,
    encode_reply,
    is_for_a_model,
    patch_content,
    read_meta,
)
from spanreplay.seams.so_far import SoFar
from spanreplay.seams.telemetry import ANSWER, ANSWER_HEADERS, is_telemetry

_TEST_CLIENT: Final = "_TestClientTransport"
"""What `starlette.testclient` and `fastapi.testclient` call theirs."""


class HttpxSeam:
    """The seam for one of the two modules, `hx`."""

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
        """The transport of the call in flight, or the client's own."""
        call = _current.get()
        if call is None or call.seam is not self:
            return wrapped(*args, **kwargs)
        if call.is_served:
            return ReplayTransport(call)
        inner = wrapped(*args, **kwargs)
        return RecordingTransport(inner, call, is_in_process=isinstance(inner, self._in_process))

    def send(self, wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        """`Client.send`, recorded or served."""
        run = active_run()
        if run is None:
            return wrapped(*args, **kwargs)
        request = args[0] if args else kwargs["request"]
        if self._is_black_hole(run, request):
            return self.hx.Response(200, request=request, headers=ANSWER_HEADERS, content=ANSWER)
        if self._is_passed(run, request) or not isinstance(request.stream, self.hx.SyncByteStream):
            with _carrying(None):
                return wrapped(*args, **kwargs)
        request.read()  # what the user's own body iterator raises goes on as it is
        if self._asks_own_app(client, request):
            with _carrying(None):
                return wrapped(*args, **kwargs)
        call = _HttpCall(self, request, is_stream=bool(kwargs.get("stream")))
        crossing = call.begin()
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
        call.returned(response)
        return response

    async def asend(self, wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        """`AsyncClient.send`, recorded or served."""
        run = active_run()
        if run is None:
            return await wrapped(*args, **kwargs)
        request = args[0] if args else kwargs["request"]
        if self._is_black_hole(run, request):
            return self.hx.Response(200, request=request, headers=ANSWER_HEADERS, content=ANSWER)
        if self._is_passed(run, request) or not isinstance(request.stream, self.hx.AsyncByteStream):
            with _carrying(None):
                return await wrapped(*args, **kwargs)
        await request.aread()
        if self._asks_own_app(client, request):
            with _carrying(None):
                return await wrapped(*args, **kwargs)
        call = _HttpCall(self, request, is_stream=bool(kwargs.get("stream")))
        crossing = call.begin()
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
        call.returned(response)
        return response

    @staticmethod
    def _is_passed(run: Run, request: Any) -> bool:
        return is_plumbing(run) or is_telemetry(request.method, request.url.host, request.url.path)

    def _asks_own_app(self, client: Any, request: Any) -> bool:
        """Whether this process answers by itself, with an application that is no model's provider."""
        url, transport = request.url, client._transport_for_url(request.url)
        is_app = isinstance(transport, self._apps) and _is_made_up(url.host)
        is_here = is_app or type(transport).__name__ == _TEST_CLIENT or is_own(url.host, url.port)
        return is_here and not is_for_a_model(request.method, str(request.url), request.content)

    @staticmethod
    def _is_black_hole(run: Run, request: Any) -> bool:
        return run.session is not None and is_telemetry(request.method, request.url.host, request.url.path)


def _is_made_up(host: str) -> bool:
    """Whether a host is a name like `test`, which no network has: not a stand-in for a server elsewhere."""
    return "." not in host and ":" not in host and host != "localhost"


@dataclass
class _Hop:
    """One response of a call; `tee` is None where its body was there at once."""

    url: str
    response: Any
    tee: Any
    ms: int


class _HttpCall:
    """One `send` on its way: what its wires tell is recorded, or what was recorded is served to them."""

    def __init__(self, seam: HttpxSeam, request: Any, *, is_stream: bool) -> None:
        self.seam = seam
        self.is_stream = is_stream
        self._request = request
        self._crossing: Crossing | None = None
        self._exchange = HttpExchange()
        self._hops: list[_Hop] = []
        self._failure: BaseException | None = None
        self._is_returned = False
        self._pending: deque[HttpReply] = deque()
        self._start_ns = ids.monotonic_ns()
        self._so_far = SoFar()

    def begin(self) -> Crossing | None:
        """Open the call; None if nothing is recorded here."""
        self._crossing = begin(self._describe)
        return self._crossing

    def _describe(self, run: Run, patches: Any = ()) -> Any:
        request = self._request
        headers = request.headers.multi_items()
        content = patch_content(request.content, headers, patches) if patches else request.content
        spec, self._exchange = describe_request(run, request.method, str(request.url), headers, content)
        if patches:
            self._request = self._with_content(content)
        elif run.session is not None:
            spec.amend = partial(self._describe, run)
        return spec

    def _with_content(self, content: bytes) -> Any:
        request = self._request
        headers = [(k, v) for k, v in request.headers.multi_items() if k.lower() not in ("content-length", "host")]
        return self.seam.hx.Request(
            request.method, request.url, headers=headers, content=content, extensions=request.extensions
        )

    def replace_request(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of `send`, with the request as a plan has changed it."""
        return ((self._request, *args[1:]), kwargs) if args else (args, {**kwargs, "request": self._request})

    @property
    def is_served(self) -> bool:
        """Whether the answer comes from the recording."""
        return self._crossing is not None and self._crossing.served is not None

    # ── live: what the wires tell ───────────────────────────────────────────────────────────────────
    def elapsed_ms(self) -> int:
        """Milliseconds since the request."""
        return (ids.monotonic_ns() - self._start_ns) // 1_000_000

    def answered(self, request: Any, response: Any) -> None:
        """One response has come."""
        guard.guarded("recording a response", self._answered, request, response)

    def _answered(self, request: Any, response: Any) -> None:
        tee = None
        if not hasattr(response, "_content"):
            tee = response.stream = self.seam.streams.tee(response.stream, self)
        self._hops.append(_Hop(str(request.url), response, tee, self.elapsed_ms()))
        if len(self._hops) == 1:
            self.mark()

    def broke(self, exc: BaseException) -> None:
        """The network gave no response but this."""
        self._failure = exc

    def ended(self, tee: Any) -> None:
        """A body ended; if it is the one that the agent reads, so does the call."""
        if self._is_returned and self._hops and self._hops[-1].tee is tee:
            guard.guarded("recording a stream", self._finish, None)

    def returned(self, response: Any) -> None:
        """The client is done: record the call now, or when its stream has been read."""
        if not self.is_served:
            guard.guarded("recording a response", self._returned, response)

    def _returned(self, response: Any) -> None:
        self._is_returned = True
        if not self._hops:  # answered by something in front of the transport
            self._hops.append(_Hop(str(self._request.url), response, None, self.elapsed_ms()))
        tee = self._hops[-1].tee
        if tee is None or tee.end:
            self._finish(None)
        elif self._crossing is not None:
            self._crossing.on_abandon = lambda: tee.finish("closed")

    def failed(self, exc: BaseException) -> None:
        """The client raised. The exception itself goes on unchanged."""
        if not self.is_served:
            guard.guarded("recording a failure", self._finish, exc)

    def _finish(self, exc: BaseException | None) -> None:
        crossing = self._crossing
        if crossing is None:
            return
        *hops, reply = [*map(self._reply, self._hops), *([HttpReply(0)] if self._failure or not self._hops else [])]
        reply.hops = hops
        failure = self._failure or (exc if not reply.status else None)
        if failure is not None:
            reply.error, reply.end = _describe_error(self.seam.hx, failure), "error"
        last = self._hops[-1].tee if self._hops else None
        self._hops = []
        text, texts = encode_reply(crossing.run, reply, crossing.spec)
        if reply.status:
            crossing.spec.meta.update(guard.guarded("reading a response", self._read_meta, reply, texts) or {})
        cause = failure or exc or (last.error if last is not None else None)
        is_error = cause is not None or reply.error is not None or reply.status >= 400
        is_cancelled = cause is not None and not isinstance(cause, Exception)
        outcome = Outcome.CANCELLED if is_cancelled else Outcome.ERROR if is_error else Outcome.OK
        crossing.close(outcome, text)

    def _read_meta(self, reply: HttpReply, texts: list[str]) -> dict[str, Any]:
        return read_meta(self._exchange, reply, texts, is_stream=self.is_stream)

    def _reply(self, hop: _Hop) -> HttpReply:
        response, tee, reply = hop.response, hop.tee, _head(hop)
        if tee is None:
            content = getattr(response, "_content", None)
            reply.chunks = [(hop.ms, content)] if content else []
            reply.end = "closed" if content is None else "complete"
            return reply
        reply.end = tee.end or "closed"
        reply.chunks, error = decode_chunks(self.seam.hx, response, tee.chunks)
        tee.chunks = []
        error = tee.error or error
        if error is not None:
            reply.error, reply.end = _describe_error(self.seam.hx, error), "error"
        if not self.is_stream and len(reply.chunks) > 1:
            reply.chunks = [(reply.chunks[-1][0], b"".join(chunk for _, chunk in reply.chunks))]
        return reply

    # ── served: when ────────────────────────────────────────────────────────────────────────────────
    @property
    def _first_part(self) -> int:
        recorded = self._crossing.served if self._crossing is not None else None
        return RESPONSE if recorded is not None and recorded.clocks else WHOLE

    def wait(self) -> None:
        """Until the recorded response may go out; at once for a live call."""
        if self._crossing is not None and self.is_served:
            wait_turn(self._crossing, self._first_part)

    async def wait_async(self) -> None:
        """Until the recorded response may go out; at once for a live call and for one that was cancelled."""
        crossing = self._crossing
        if crossing is None or crossing.served is None or crossing.served.outcome == Outcome.CANCELLED.value:
            return
        await await_turn(crossing, self._first_part, 0 if crossing.served.clocks else None)

    def wait_chunk(self, number: int) -> None:
        """Until a recorded chunk may go out."""
        if self._crossing is not None:
            wait_turn(self._crossing, number + 1)

    async def await_chunk(self, number: int, ms: int) -> None:
        """Until a recorded chunk may go out."""
        if self._crossing is not None:
            await await_turn(self._crossing, number + 1, ms)

    def stream_over(self) -> None:
        """The served body was read to its end, or left."""
        if self._crossing is not None:
            end_stream(self._crossing)

    def waiting(self) -> inside_call:
        """A block in which the network is waited for."""
        return inside_call(self._crossing)

    def mark(self) -> None:
        """A part of a live stream has come."""
        if self.is_stream and self._crossing is not None:
            self._crossing.mark()
            self._so_far.note(self._crossing, self.elapsed_ms(), self._read_so_far)

    def _read_so_far(self) -> HttpReply | None:
        tee = self._hops[-1].tee if self._hops else None
        if tee is None:
            return None
        reply = _head(self._hops[-1])
        reply.chunks, _ = decode_chunks(self.seam.hx, self._hops[-1].response, list(tee.chunks))
        return reply

    # ── served: what the wires ask ──────────────────────────────────────────────────────────────────
    def load(self) -> None:
        """Make the recorded responses ready, if there are any to serve. Raises: ReplayMiss if they can't be."""
        crossing = self._crossing
        if crossing is None or crossing.served is None:
            return
        recorded = crossing.served
        crossing.spec.meta.update(recorded.meta)
        crossing.close(Outcome(recorded.outcome), recorded.response)
        try:
            reply = decode_reply(recorded.response)
        except Truncated as exc:
            raise _at_hole(
                crossing, f"the response of call {recorded.seq} ({recorded.boundary}) was cut: {exc}"
            ) from exc
        except (ValueError, KeyError, TypeError) as exc:
            raise _broken(crossing, f"call {recorded.seq} of the recording has no usable response") from exc
        self._pending.extend([*reply.hops, reply])

    def next_failure(self) -> BaseException | None:
        """What the network gave instead of the next response, if it gave none; takes nothing."""
        if not self._pending or self._pending[0].status:
            return None
        return self._to_exception(self._pending[0].error or {})

    def next_response(self, request: Any) -> Any:
        """The recorded response to this request. Raises: what was raised, or ReplayMiss."""
        failure = self.next_failure()
        if failure is not None:
            raise failure
        if not self._pending:
            raise _overrun(self._crossing)
        reply = self._pending.popleft()
        hx = self.seam.hx
        response = hx.Response(
            reply.status,
            headers=reply.headers,
            stream=self.seam.streams.replayed(self, reply),
            request=request,
            extensions={
                "http_version": reply.http_version.encode("ascii", "replace"),
                "reason_phrase": reply.reason.encode("ascii", "replace"),
            },
        )
        if "content-encoding" in response.headers:
            # The recorded body is decoded already; headers stay as they were
            response._decoder = hx._decoders.IdentityDecoder()
        return response

    def end_of_body(self, reply: HttpReply) -> BaseException | None:
        """What is raised behind the last recorded chunk."""
        if reply.error is not None:
            return self._to_exception(reply.error)
        return _overrun(self._crossing) if reply.end == "closed" else None

    async def settle(self, exc: BaseException) -> None:
        """Wait for a recorded cancellation to happen again."""
        if self._crossing is not None:
            await await_cancellation(self._crossing)

    def _to_exception(self, error: dict[str, Any]) -> BaseException:
        hx = self.seam.hx
        if "value" in error:
            try:
                return codec.decode_exception(error["value"])
            except (SpanreplayError, ValueError, KeyError, TypeError):
                return _broken(self._crossing, f"the recorded {error.get('type')} can't be rebuilt")
        message = str(error.get("message", ""))
        cls = getattr(hx, str(error.get("type", "")).rpartition(".")[2], None)
        if isinstance(cls, type) and issubclass(cls, hx.RequestError):
            found: BaseException = cls(message, request=self._request)
            return found
        if isinstance(cls, type) and issubclass(cls, Exception):
            for args in ((message,), ()):
                with contextlib.suppress(TypeError):
                    return cls(*args)
        failure: BaseException = hx.TransportError(message, request=self._request)
        return failure


_current: ContextVar[_HttpCall | None] = ContextVar("spanreplay_httpx_call", default=None)


class _carrying:  # noqa: N801 -- reads as a statement: `with _carrying(call):`
    """The transports asked for in this block are the call's; None: the client's own."""

    __slots__ = ("_call", "_token")

    def __init__(self, call: _HttpCall | None) -> None:
        self._call = call
        self._token: Token[_HttpCall | None] | None = None

    def __enter__(self) -> None:
        self._token = _current.set(self._call)

    def __exit__(self, *exc_info: object) -> None:
        if self._token is not None:
            _current.reset(self._token)


def _broken(crossing: Crossing | None, message: str) -> ReplayMiss:
    session = crossing.run.session if crossing is not None else None
    return session.broken(message) if session is not None else ReplayMiss(message)


def _at_hole(crossing: Crossing, message: str) -> ReplayMiss:
    session = crossing.run.session
    return session.at_hole(message) if session is not None else ReplayMiss(message)


def _overrun(crossing: Crossing | None) -> ReplayMiss:
    if crossing is None or crossing.run.session is None:
        return ReplayMiss("more was read than was recorded")
    return crossing.run.session.overrun(crossing)


def _head(hop: _Hop) -> HttpReply:
    """A response without its body."""
    response = hop.response
    return HttpReply(
        status=response.status_code,
        reason=response.reason_phrase,
        http_version=response.http_version,
        headers=[(k, v) for k, v in response.headers.multi_items()],
        url=hop.url,
    )


def _describe_error(hx: Any, exc: BaseException) -> dict[str, Any]:
    cls = type(exc)
    root = cls.__module__.partition(".")[0]
    described: dict[str, Any] = {"type": f"{root}.{cls.__qualname__}", "message": str(exc)}
    if root != hx.__name__:
        with contextlib.suppress(Unserializable):
            described["value"] = codec.encode_exception(exc)
    return described


def install(module: Any, patches: Patches) -> None:
    """Patch httpx or httpx2."""
    HttpxSeam(module).install(patches)
