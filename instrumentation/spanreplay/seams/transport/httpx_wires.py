"""Transports and streams between an httpx client and the network: one kind records, the other serves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from spanreplay.runtime.calls.cancel import is_cancellation
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.wire.http_body import Body
from spanreplay.runtime.wire.http_reply import HttpReply
from spanreplay.seams.concurrency.closings import Closing

T = TypeVar("T")


class Answering(Protocol):
    """A call, as the transport of its requests sees it."""

    def attempt(self, function: Callable[..., T], *args: Any) -> T:
        """Call what asks the network or serves the recording; its exception has the same stacks in both."""

    async def aattempt(self, at: str, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """`attempt` for a coroutine function."""


class Recorder(Answering, Protocol):
    """A call being recorded, as its wires see it; no method raises by itself."""

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """A block that waits for the network."""

    def closing(self) -> Closing:
        """Note that a response is being closed."""

    def note_response(self, request: Any, response: Any) -> None:
        """Note one response; there are several if the client follows redirects or authenticates."""


class Server(Answering, Protocol):
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


class _Transport:
    """Answers a client's requests."""

    def __init__(self, call: Answering) -> None:
        self._answering = call

    def handle_request(self, request: Any) -> Any:
        """Return the response, or raise the network's exception."""
        return self._answering.attempt(self._answer, request)

    async def handle_async_request(self, request: Any) -> Any:
        """Return the response, or raise the network's exception."""
        return await self._answering.aattempt("", self._aanswer, request)

    def _answer(self, request: Any) -> Any:
        raise NotImplementedError

    async def _aanswer(self, request: Any) -> Any:
        raise NotImplementedError


class RecordingTransport(_Transport):
    """Passes requests on and notes the responses.

    If a transport uses another library (LiteLLM's uses aiohttp), that is part of the call and recorded with it. An
    application that answers in this process makes its own calls.
    """

    def __init__(self, inner: Any, call: Recorder, *, is_in_process: bool = False) -> None:
        super().__init__(call)
        self._inner = inner
        self._call = call
        self._below = contextlib.nullcontext if is_in_process else plumbing

    def _answer(self, request: Any) -> Any:
        with self._below():
            response = self._inner.handle_request(request)
        self._call.note_response(request, response)
        return response

    async def _aanswer(self, request: Any) -> Any:
        with self._below():
            response = await self._inner.handle_async_request(request)
        self._call.note_response(request, response)
        return response


class ReplayTransport(_Transport):
    """Answers requests from the recording, without the network."""

    def __init__(self, call: Server) -> None:
        super().__init__(call)
        self._call = call

    def _answer(self, request: Any) -> Any:
        return self._call.next_response(request)

    async def _aanswer(self, request: Any) -> Any:
        failure = self._call.next_failure()
        if is_cancellation(failure):
            await self._call.settle(failure)
        return self._call.next_response(request)


@dataclass(frozen=True)
class Streams:
    """The stream classes for one of the modules httpx and httpx2."""

    tee: Callable[[Any, Body, Recorder], Any]
    replayed: Callable[[Server, Body], Any]
    sent: Callable[[Any], Any]


def build_streams(hx: Any) -> Streams:
    """Build streams that a client of `hx` accepts, sync and async."""
    stream = _build_stream(hx)
    return Streams(_build_tee(stream), _build_replayed(stream), _build_sent(hx))


def _build_stream(hx: Any) -> Any:
    class Stream(hx.SyncByteStream, hx.AsyncByteStream):  # type: ignore[misc]  # hx is one of two modules
        """Yields the pieces that a subclass reads, in frames that are the same for both subclasses."""

        _body: Body

        def __iter__(self) -> Iterator[bytes]:
            try:
                read = self._begin()
                while (chunk := self._body.attempt(read)) is not None:
                    yield chunk
            finally:
                self._leave()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                read = self._abegin()
                while (chunk := await self._body.aattempt(read)) is not None:
                    yield chunk
            finally:
                self._leave()

    return Stream


def _build_tee(stream: Any) -> Any:
    class Tee(stream):  # type: ignore[misc]  # made above
        """Passes chunks on immediately and keeps a copy; ends the record exactly once."""

        def __init__(self, inner: Any, body: Body, call: Recorder) -> None:
            self._inner = inner
            self._body = body
            self._call = call

        def _begin(self) -> Callable[[], bytes | None]:
            chunks = iter(self._inner)
            return lambda: self._note(next(chunks, None))

        def _abegin(self) -> Callable[[], Awaitable[bytes | None]]:
            chunks = aiter(self._inner)

            async def read() -> bytes | None:
                with self._call.waiting():
                    chunk = await anext(chunks, None)
                return self._note(chunk)

            return read

        def _note(self, chunk: bytes | None) -> bytes | None:
            if chunk is None:
                self._body.finish("complete")
            else:
                self._body.keep(chunk)
            return chunk

        def _leave(self) -> None:
            self._body.finish("closed")

        def close(self) -> None:
            self._leave()
            self._inner.close()

        async def aclose(self) -> None:
            self._leave()
            closing = self._call.closing()
            with self._call.waiting():
                await self._inner.aclose()
            closing.ended()

    return Tee


def _build_replayed(stream: Any) -> Any:
    class Replayed(stream):  # type: ignore[misc]  # made above
        """Yields the recorded chunks."""

        def __init__(self, call: Server, body: Body) -> None:
            self._call = call
            self._body = body
            self._reply = body.reply

        def close(self) -> None:
            self._leave()

        async def aclose(self) -> None:
            self._leave()
            await self._call.await_closed(self._reply)

        def _leave(self) -> None:
            self._call.stream_over(self._reply)

        def _begin(self) -> Callable[[], bytes | None]:
            chunks = enumerate(self._reply.chunks)

            def read() -> bytes | None:
                for number, (_, chunk) in chunks:
                    self._call.wait_chunk(self._reply, number)
                    return chunk
                self._call.wait_end(self._reply)
                self._leave()
                failure = self._call.end_of_body(self._reply)
                if failure is not None:
                    raise failure
                return None

            return read

        def _abegin(self) -> Callable[[], Awaitable[bytes | None]]:
            chunks = enumerate(self._reply.chunks)

            async def read() -> bytes | None:
                for number, (_, chunk) in chunks:
                    await self._call.await_chunk(self._reply, number)
                    return chunk
                failure = self._call.end_of_body(self._reply)
                try:
                    await self._call.await_end_of(self._reply, failure)
                finally:
                    self._leave()
                if is_cancellation(failure):
                    await self._call.settle(failure)
                if failure is not None:
                    raise failure
                return None

            return read

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
