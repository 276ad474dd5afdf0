"""Transports and streams between an httpx client and the network: one kind records, the other serves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from spanreplay.runtime.calls.cancel import is_cancellation
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.wire.http_call import Body
from spanreplay.runtime.wire.http_reply import HttpReply
from spanreplay.seams.concurrency.closings import Closing


class Recorder(Protocol):
    """A call being recorded, as its wires see it; no method raises."""

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """A block that waits for the network."""

    def closing(self) -> Closing:
        """Note that a response is being closed."""

    def note_response(self, request: Any, response: Any) -> None:
        """Note one response; there are several if the client follows redirects or authenticates."""

    def broke(self, exc: BaseException) -> None:
        """Note the exception that the network raised instead of a response."""


class Server(Protocol):
    """A call that is served from the recording."""

    def next_response(self, request: Any) -> Any:
        """Return the recorded response to this request. Raises: the recorded exception, or ReplayMiss."""

    def next_failure(self) -> BaseException | None:
        """Return the recorded exception in place of the next response, if there is one; consumes nothing."""

    def end_of_body(self, reply: HttpReply) -> BaseException | None:
        """Return the exception to raise after the last recorded chunk, if any."""

    def wait_chunk(self, reply: HttpReply, number: int) -> None:
        """Wait until a recorded chunk may go out."""

    async def await_chunk(self, reply: HttpReply, number: int) -> None:
        """Wait until a recorded chunk may go out."""

    def wait_end(self, reply: HttpReply) -> None:
        """Wait until the recorded body may end."""

    async def await_end_of(self, reply: HttpReply, failure: BaseException | None) -> None:
        """Wait until the recorded body may end."""

    def stream_over(self, reply: HttpReply) -> None:
        """Note that the served body was read to its end, or abandoned."""

    async def await_closed(self, reply: HttpReply) -> None:
        """Wait until the recorded response was closed."""

    async def settle(self, exc: BaseException) -> None:
        """Wait for a recorded cancellation to happen again."""


class RecordingTransport:
    """Passes requests on and notes the responses.

    If a transport uses another library (LiteLLM's uses aiohttp), that is part of the call and recorded with it. An
    application that answers in this process makes its own calls.
    """

    def __init__(self, inner: Any, call: Recorder, *, is_in_process: bool = False) -> None:
        self._inner = inner
        self._call = call
        self._below = contextlib.nullcontext if is_in_process else plumbing

    def handle_request(self, request: Any) -> Any:
        """Send one request to the network."""
        try:
            with self._below():
                response = self._inner.handle_request(request)
        except BaseException as exc:
            self._call.broke(exc)
            raise
        self._call.note_response(request, response)
        return response

    async def handle_async_request(self, request: Any) -> Any:
        """Send one request to the network."""
        try:
            with self._below():
                response = await self._inner.handle_async_request(request)
        except BaseException as exc:
            self._call.broke(exc)
            raise
        self._call.note_response(request, response)
        return response


class ReplayTransport:
    """Answers requests from the recording, without the network."""

    def __init__(self, call: Server) -> None:
        self._call = call

    def handle_request(self, request: Any) -> Any:
        """Return the recorded response, or raise the recorded exception."""
        return self._call.next_response(request)

    async def handle_async_request(self, request: Any) -> Any:
        """Return the recorded response, or raise the recorded exception."""
        failure = self._call.next_failure()
        if is_cancellation(failure):
            await self._call.settle(failure)
        return self._call.next_response(request)


@dataclass(frozen=True)
class Streams:
    """The stream classes for one of the modules httpx and httpx2."""

    tee: Callable[[Any, Body, Recorder], Any]
    replayed: Callable[[Server, HttpReply], Any]
    sent: Callable[[Any], Any]


def build_streams(hx: Any) -> Streams:
    """Build streams that a client of `hx` accepts, sync and async."""
    return Streams(_build_tee(hx), _build_replayed(hx), _build_sent(hx))


def _build_tee(hx: Any) -> Any:
    class Tee(hx.SyncByteStream, hx.AsyncByteStream):  # type: ignore[misc]  # hx is one of two modules
        """Passes chunks on immediately and keeps a copy; ends the record exactly once."""

        def __init__(self, inner: Any, body: Body, call: Recorder) -> None:
            self._inner = inner
            self._body = body
            self._call = call

        def __iter__(self) -> Iterator[bytes]:
            try:
                for chunk in self._inner:
                    self._body.keep(chunk)
                    yield chunk
            except GeneratorExit:
                self._body.finish("closed")
                raise
            except BaseException as exc:
                self._body.finish("error", exc)
                raise
            self._body.finish("complete")

        async def __aiter__(self) -> AsyncIterator[bytes]:
            chunks = aiter(self._inner)
            try:
                while (chunk := await self._next(chunks)) is not None:
                    self._body.keep(chunk)
                    yield chunk
            except GeneratorExit:
                self._body.finish("closed")
                raise
            except BaseException as exc:
                self._body.finish("error", exc)
                raise
            self._body.finish("complete")

        async def _next(self, chunks: AsyncIterator[bytes]) -> bytes | None:
            with self._call.waiting():
                return await anext(chunks, None)

        def close(self) -> None:
            self._body.finish("closed")
            self._inner.close()

        async def aclose(self) -> None:
            self._body.finish("closed")
            closing = self._call.closing()
            with self._call.waiting():
                await self._inner.aclose()
            closing.ended()

    return Tee


def _build_replayed(hx: Any) -> Any:
    class Replayed(hx.SyncByteStream, hx.AsyncByteStream):  # type: ignore[misc]  # as above
        """Yields the recorded chunks."""

        def __init__(self, call: Server, reply: HttpReply) -> None:
            self._call = call
            self._reply = reply

        def close(self) -> None:
            self._call.stream_over(self._reply)

        async def aclose(self) -> None:
            self._call.stream_over(self._reply)
            await self._call.await_closed(self._reply)

        def __iter__(self) -> Iterator[bytes]:
            try:
                for number, (_, chunk) in enumerate(self._reply.chunks):
                    self._call.wait_chunk(self._reply, number)
                    yield chunk
                self._call.wait_end(self._reply)
            finally:
                self._call.stream_over(self._reply)
            failure = self._call.end_of_body(self._reply)
            if failure is not None:
                raise failure

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                for number, (_, chunk) in enumerate(self._reply.chunks):
                    await self._call.await_chunk(self._reply, number)
                    yield chunk
                failure = self._call.end_of_body(self._reply)
                await self._call.await_end_of(self._reply, failure)
            finally:
                self._call.stream_over(self._reply)
            if is_cancellation(failure):
                await self._call.settle(failure)
            if failure is not None:
                raise failure

    return Replayed


def _build_sent(hx: Any) -> Any:
    class Sent(hx.SyncByteStream, hx.AsyncByteStream):  # type: ignore[misc]  # as above
        """Yields the pieces of a request's body as they come, once."""

        def __init__(self, pieces: Any) -> None:
            self._pieces = pieces

        def _take(self) -> Any:
            if self._pieces is None:
                raise hx.StreamConsumed
            pieces, self._pieces = self._pieces, None
            return pieces

        def __iter__(self) -> Iterator[bytes]:
            yield from self._take()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for piece in self._take():
                yield piece

    return Sent
