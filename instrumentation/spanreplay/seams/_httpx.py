"""Seam: `Client.send` and `AsyncClient.send` of httpx and of its successor httpx2.

Above the socket and below the SDK: each call is separate under HTTP/2 and asyncio, chunks are recorded as the agent
consumes them, and in a replay the SDK itself rebuilds its typed objects, streams, headers and errors.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Iterator
from typing import Any

from spanreplay import guard, ids
from spanreplay._patch import Patches
from spanreplay.call import Outcome
from spanreplay.crossing import Crossing, begin, is_plumbing
from spanreplay.errors import ReplayMiss
from spanreplay.run import Run, active_run
from spanreplay.seams.http_reply import HttpReply, decode_reply
from spanreplay.seams.http_wire import HttpExchange, describe_request, encode_reply, read_meta
from spanreplay.seams.telemetry import is_telemetry


class HttpxSeam:
    """The seam for one of the two modules, `hx`."""

    def __init__(self, hx: Any) -> None:
        self.hx = hx
        tee, replayed = _stream_classes(hx)
        self._tee = tee
        self._replayed = replayed

    def install(self, patches: Patches) -> None:
        """Wrap both clients."""
        patches.wrap(self.hx.Client, "send", self.send)
        patches.wrap(self.hx.AsyncClient, "send", self.asend)

    def send(self, wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        """`Client.send`, recorded or served."""
        run = active_run()
        if run is None or is_plumbing(run):
            return wrapped(*args, **kwargs)
        request = args[0] if args else kwargs["request"]
        if is_telemetry(request.url.host, request.url.path):
            return self._black_hole(request) if _is_replaying() else wrapped(*args, **kwargs)
        guard.guarded("reading a request", request.read)
        call = _HttpCall(self, request, is_stream=bool(kwargs.get("stream")))
        crossing = call.begin()
        if crossing is None:
            return wrapped(*args, **kwargs)
        if crossing.served is not None:
            response = call.serve(client)
            for hook in client.event_hooks.get("response", ()):
                hook(response)
            if not call.is_stream:
                response.read()
            return response
        try:
            with crossing:
                response = wrapped(*args, **kwargs)
        except BaseException as exc:
            call.fail(exc)
            raise
        call.received(response)
        return response

    def asend(self, wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        """`AsyncClient.send`, recorded or served."""
        run = active_run()
        if run is None or is_plumbing(run):
            return wrapped(*args, **kwargs)
        return self._asend(wrapped, client, args, kwargs)

    async def _asend(self, wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        request = args[0] if args else kwargs["request"]
        if is_telemetry(request.url.host, request.url.path):
            return self._black_hole(request) if _is_replaying() else await wrapped(*args, **kwargs)
        try:
            await request.aread()
        except Exception as exc:  # noqa: BLE001 -- nothing of ours may reach the agent
            guard.report_failure("reading a request", exc)
        call = _HttpCall(self, request, is_stream=bool(kwargs.get("stream")))
        crossing = call.begin()
        if crossing is None:
            return await wrapped(*args, **kwargs)
        if crossing.served is not None:
            if crossing.served.outcome == Outcome.CANCELLED.value:
                await asyncio.get_running_loop().create_future()  # the program must cancel it, as it did
            response = call.serve(client)
            for hook in client.event_hooks.get("response", ()):
                await hook(response)
            if not call.is_stream:
                await response.aread()
            return response
        try:
            with crossing:
                response = await wrapped(*args, **kwargs)
        except BaseException as exc:
            call.fail(exc)
            raise
        call.received(response)
        return response

    def _black_hole(self, request: Any) -> Any:
        return self.hx.Response(200, request=request, content=b"")


def _is_replaying() -> bool:
    run = active_run()
    return run is not None and run.session is not None


class _HttpCall:
    """One request on its way: what to do when it is answered, fails, or is served."""

    def __init__(self, seam: HttpxSeam, request: Any, *, is_stream: bool) -> None:
        self._seam = seam
        self._request = request
        self.is_stream = is_stream
        self._crossing: Crossing | None = None
        self._exchange = HttpExchange()
        self.start_ns = ids.monotonic_ns()

    def begin(self) -> Crossing | None:
        """Open the call; None if nothing is recorded here."""
        self._crossing = begin(self._describe)
        return self._crossing

    def _describe(self, run: Run) -> Any:
        request = self._request
        spec, self._exchange = describe_request(
            run, request.method, str(request.url), request.headers.multi_items(), request.content
        )
        return spec

    # ── live ────────────────────────────────────────────────────────────────────────────────────────
    def received(self, response: Any) -> None:
        """A response has come: record it now, or when its stream has been read."""
        guard.guarded("recording a response", self._received, response)

    def _received(self, response: Any) -> None:
        if not self.is_stream:
            self._finish(self._reply(response, [(self._elapsed_ms(), response.content)], "complete"))
            return
        tee = self._seam._tee(response.stream, self, response)
        if self._crossing is not None:
            self._crossing.on_abandon = tee.abandon
        response.stream = tee

    def _elapsed_ms(self) -> int:
        return (ids.monotonic_ns() - self.start_ns) // 1_000_000

    def _reply(self, response: Any, chunks: list[tuple[int, bytes]], end: str) -> HttpReply:
        return HttpReply(
            status=response.status_code,
            reason=response.reason_phrase,
            http_version=response.http_version,
            headers=[(k, v) for k, v in response.headers.multi_items()],
            url=str(response.url),
            chunks=chunks,
            end=end,
        )

    def stream_ended(
        self, response: Any, chunks: list[tuple[int, bytes]], error: BaseException | None, end: str
    ) -> None:
        """The stream was read to its end, broke, or was closed early."""
        guard.guarded("recording a stream", self._stream_ended, response, chunks, error, end)

    def _stream_ended(
        self, response: Any, chunks: list[tuple[int, bytes]], error: BaseException | None, end: str
    ) -> None:
        reply = self._reply(response, _decoded(self._seam.hx, response, chunks), end)
        if error is not None:
            reply.error = _describe_error(error)
        self._finish(reply)

    def _finish(self, reply: HttpReply) -> None:
        crossing = self._crossing
        if crossing is None:
            return
        spec = crossing.spec
        text, chunks = encode_reply(crossing.run, reply, spec.redactions)
        meta = guard.guarded("reading a response", self._read_meta, reply.status, chunks)
        spec.meta.update(meta or {})
        is_error = reply.status >= 400 or reply.error is not None
        crossing.close(Outcome.ERROR if is_error else Outcome.OK, text)

    def _read_meta(self, status: int, chunks: list[str]) -> dict[str, Any]:
        return read_meta(self._exchange, status, chunks, is_stream=self.is_stream)

    def fail(self, exc: BaseException) -> None:
        """No response: the request raised. The exception itself goes on unchanged."""
        guard.guarded("recording a failure", self._fail, exc)

    def _fail(self, exc: BaseException) -> None:
        crossing = self._crossing
        if crossing is None:
            return
        error = _describe_error(exc)
        error["message"] = crossing.run.redactor.text(error["message"], crossing.spec.redactions)
        text = _dump({"error": error})
        crossing.close(Outcome.ERROR if isinstance(exc, Exception) else Outcome.CANCELLED, text)

    # ── served ──────────────────────────────────────────────────────────────────────────────────────
    def serve(self, client: Any) -> Any:
        """The recorded response, or the recorded exception raised."""
        crossing = self._crossing
        if crossing is None or crossing.served is None:
            raise AssertionError("serve() needs a served crossing")
        recorded = crossing.served
        crossing.spec.meta.update(recorded.meta)
        crossing.close(Outcome(recorded.outcome), recorded.response)
        try:
            reply = decode_reply(recorded.response)
        except (ValueError, KeyError, TypeError) as exc:
            raise self._broken(crossing, f"call {recorded.seq} of the recording has no usable response") from exc
        if reply.status == 0 and reply.error is not None:
            raise self._to_exception(reply.error)
        return self._build_response(client, crossing, reply)

    @staticmethod
    def _broken(crossing: Crossing, message: str) -> ReplayMiss:
        session = crossing.run.session
        return session.broken(message) if session is not None else ReplayMiss(message)

    def _to_exception(self, error: dict[str, Any]) -> BaseException:
        name = str(error.get("type", "")).rpartition(".")[2]
        cls = getattr(self._seam.hx, name, None)
        message = str(error.get("message", ""))
        if isinstance(cls, type) and issubclass(cls, self._seam.hx.RequestError):
            found: BaseException = cls(message, request=self._request)
            return found
        if isinstance(cls, type) and issubclass(cls, Exception):
            return cls(message)
        if name == "CancelledError":
            return asyncio.CancelledError(message)
        if name == "KeyboardInterrupt":
            return KeyboardInterrupt(message)
        failure: BaseException = self._seam.hx.TransportError(message, request=self._request)
        return failure

    def _build_response(self, client: Any, crossing: Crossing, reply: HttpReply) -> Any:
        hx = self._seam.hx
        request = self._request
        if reply.url and reply.url != str(request.url) and "rdx-" not in reply.url:
            request = hx.Request(request.method, reply.url, headers=request.headers)
        response = hx.Response(
            reply.status,
            headers=reply.headers,
            stream=self._seam._replayed(self, crossing, reply),
            request=request,
            extensions={
                "http_version": reply.http_version.encode("ascii", "replace"),
                "reason_phrase": reply.reason.encode("ascii", "replace"),
            },
            default_encoding=getattr(client, "_default_encoding", "utf-8"),
        )
        if "content-encoding" in response.headers:
            # The recorded body is decoded already; headers stay as they were
            response._decoder = hx._decoders.IdentityDecoder()
        response.elapsed = dt.timedelta(milliseconds=reply.chunks[-1][0] if reply.chunks else 0)
        return response


def _decoded(hx: Any, response: Any, chunks: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    if not response.headers.get("content-encoding"):
        return chunks
    decoder = hx.Response(200, headers=response.headers)._get_content_decoder()
    found = [(ms, decoder.decode(chunk)) for ms, chunk in chunks]
    tail = decoder.flush()
    return [*found, (chunks[-1][0], tail)] if tail and chunks else found


def _describe_error(exc: BaseException) -> dict[str, Any]:
    cls = type(exc)
    return {"type": f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}", "message": str(exc)}


def _dump(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _stream_classes(hx: Any) -> tuple[Any, Any]:
    class Tee(hx.SyncByteStream, hx.AsyncByteStream):  # type: ignore[misc]  # hx is one of two modules
        """Passes chunks on at once and keeps a copy; ends the record exactly once."""

        def __init__(self, inner: Any, call: _HttpCall, response: Any) -> None:
            self._inner = inner
            self._call = call
            self._response = response
            self._chunks: list[tuple[int, bytes]] = []
            self._is_done = False

        def _keep(self, chunk: bytes) -> None:
            self._chunks.append((self._call._elapsed_ms(), chunk))

        def _end(self, error: BaseException | None, end: str) -> None:
            if not self._is_done:
                self._is_done = True
                self._call.stream_ended(self._response, self._chunks, error, end)
                self._response = None

        def abandon(self) -> None:
            self._end(None, "closed")

        def __iter__(self) -> Iterator[bytes]:
            try:
                for chunk in self._inner:
                    self._keep(chunk)
                    yield chunk
            except GeneratorExit:
                self._end(None, "closed")
                raise
            except BaseException as exc:
                self._end(exc, "error")
                raise
            self._end(None, "complete")

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for chunk in self._inner:
                    self._keep(chunk)
                    yield chunk
            except GeneratorExit:
                self._end(None, "closed")
                raise
            except BaseException as exc:
                self._end(exc, "error")
                raise
            self._end(None, "complete")

        def close(self) -> None:
            self._end(None, "closed")
            self._inner.close()

        async def aclose(self) -> None:
            self._end(None, "closed")
            await self._inner.aclose()

    class Replayed(hx.SyncByteStream, hx.AsyncByteStream):  # type: ignore[misc]  # as above
        """Yields the recorded chunks."""

        def __init__(self, call: _HttpCall, crossing: Crossing, reply: HttpReply) -> None:
            self._call = call
            self._crossing = crossing
            self._reply = reply

        def __iter__(self) -> Iterator[bytes]:
            for _, chunk in self._reply.chunks:
                yield chunk
            self._after()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for _, chunk in self._reply.chunks:
                yield chunk
            self._after()

        def _after(self) -> None:
            if self._reply.error is not None:
                raise self._call._to_exception(self._reply.error)
            session = self._crossing.run.session
            if self._reply.end == "closed" and session is not None:
                raise session.overrun(self._crossing)

    return Tee, Replayed


def install(module: Any, patches: Patches) -> None:
    """Patch httpx or httpx2."""
    HttpxSeam(module).install(patches)
