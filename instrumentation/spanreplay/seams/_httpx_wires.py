"""Transports and streams that stand between an httpx client and the network: one records, one serves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from spanreplay.crossing import plumbing
from spanreplay.replay.cancel import is_cancellation
from spanreplay.seams.http_reply import HttpReply


class Recorder(Protocol):
    """A call that is recorded, as its wires see it; none of these raises."""

    def elapsed_ms(self) -> int:
        """Milliseconds since the request."""

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """A block in which the network is waited for."""

    def mark(self) -> None:
        """A part of a stream has come."""

    def answered(self, request: Any, response: Any) -> None:
        """One response has come; there are several where the client follows redirects or authenticates."""

    def broke(self, exc: BaseException) -> None:
        """The network gave no response but this."""

    def ended(self, tee: Any) -> None:
        """A response's body was read to its end, broke, or was closed early."""


class Server(Protocol):
    """A call that is served from the recording."""

    def next_response(self, request: Any) -> Any:
        """The recorded response to this request. Raises: what was raised, or ReplayMiss."""

    def next_failure(self) -> BaseException | None:
        """What the network gave instead of the next response, if it gave none; takes nothing."""

    def end_of_body(self, reply: HttpReply) -> BaseException | None:
        """What is raised behind the last recorded chunk."""

    def wait_chunk(self, number: int) -> None:
        """Until a recorded chunk may go out."""

    async def await_chunk(self, number: int, ms: int) -> None:
        """Until a recorded chunk may go out."""

    def stream_over(self) -> None:
        """The served body was read to its end, or left."""

    async def settle(self, exc: BaseException) -> None:
        """Wait for a recorded cancellation to happen again."""


class RecordingTransport:
    """Passes requests on and notes what came back.

    What a transport does on another library (LiteLLM's does it on aiohttp) is part of the call and recorded with it.
    An application that answers in this process makes calls of its own.
    """

    def __init__(self, inner: Any, call: Recorder, *, is_in_process: bool = False) -> None:
        self._inner = inner
        self._call = call
        self._below = contextlib.nullcontext if is_in_process else plumbing

    def handle_request(self, request: Any) -> Any:
        """One request to the network."""
        try:
            with self._below():
                response = self._inner.handle_request(request)
        except BaseException as exc:
            self._call.broke(exc)
            raise
        self._call.answered(request, response)
        return response

    async def handle_async_request(self, request: Any) -> Any:
        """One request to the network."""
        try:
            with self._below():
                response = await self._inner.handle_async_request(request)
        except BaseException as exc:
            self._call.broke(exc)
            raise
        self._call.answered(request, response)
        return response


class ReplayTransport:
    """Answers requests from the recording; the network is never asked."""

    def __init__(self, call: Server) -> None:
        self._call = call

    def handle_request(self, request: Any) -> Any:
        """The recorded response, or the recorded exception raised."""
        return self._call.next_response(request)

    async def handle_async_request(self, request: Any) -> Any:
        """The recorded response, or the recorded exception raised."""
        failure = self._call.next_failure()
        if is_cancellation(failure):
            await self._call.settle(failure)
        return self._call.next_response(request)


@dataclass(frozen=True)
class Streams:
    """The stream classes for one of the modules httpx and httpx2."""

    tee: Callable[[Any, Recorder], Any]
    replayed: Callable[[Server, HttpReply], Any]


def build_streams(hx: Any) -> Streams:
    """Streams that a client of `hx` accepts, sync and async."""
    return Streams(_build_tee(hx), _build_replayed(hx))


def _build_tee(hx: Any) -> Any:
    class Tee(hx.SyncByteStream, hx.AsyncByteStream):  # type: ignore[misc]  # hx is one of two modules
        """Passes chunks on at once and keeps a copy; ends the record exactly once."""

        def __init__(self, inner: Any, call: Recorder) -> None:
            self._inner = inner
            self._call = call
            self.chunks: list[tuple[int, bytes]] = []
            self.end = ""
            self.error: BaseException | None = None

        def _keep(self, chunk: bytes) -> None:
            self.chunks.append((self._call.elapsed_ms(), chunk))
            self._call.mark()

        def finish(self, end: str, error: BaseException | None = None) -> None:
            """The body ended; the first word counts."""
            if not self.end:
                self.end, self.error = end, error
                self._call.ended(self)

        def __iter__(self) -> Iterator[bytes]:
            try:
                for chunk in self._inner:
                    self._keep(chunk)
                    yield chunk
            except GeneratorExit:
                self.finish("closed")
                raise
            except BaseException as exc:
                self.finish("error", exc)
                raise
            self.finish("complete")

        async def __aiter__(self) -> AsyncIterator[bytes]:
            chunks = aiter(self._inner)
            try:
                while (chunk := await self._next(chunks)) is not None:
                    self._keep(chunk)
                    yield chunk
            except GeneratorExit:
                self.finish("closed")
                raise
            except BaseException as exc:
                self.finish("error", exc)
                raise
            self.finish("complete")

        async def _next(self, chunks: AsyncIterator[bytes]) -> bytes | None:
            with self._call.waiting():
                return await anext(chunks, None)

        def close(self) -> None:
            self.finish("closed")
            self._inner.close()

        async def aclose(self) -> None:
            self.finish("closed")
            with self._call.waiting():
                await self._inner.aclose()

    return Tee


def _build_replayed(hx: Any) -> Any:
    class Replayed(hx.SyncByteStream, hx.AsyncByteStream):  # type: ignore[misc]  # as above
        """Yields the recorded chunks."""

        def __init__(self, call: Server, reply: HttpReply) -> None:
            self._call = call
            self._reply = reply

        def close(self) -> None:
            self._call.stream_over()

        async def aclose(self) -> None:
            self._call.stream_over()

        def __iter__(self) -> Iterator[bytes]:
            try:
                for number, (_, chunk) in enumerate(self._reply.chunks):
                    self._call.wait_chunk(number)
                    yield chunk
            finally:
                self._call.stream_over()
            failure = self._call.end_of_body(self._reply)
            if failure is not None:
                raise failure

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                for number, (ms, chunk) in enumerate(self._reply.chunks):
                    await self._call.await_chunk(number, ms)
                    yield chunk
            finally:
                self._call.stream_over()
            failure = self._call.end_of_body(self._reply)
            if is_cancellation(failure):
                await self._call.settle(failure)
            if failure is not None:
                raise failure

    return Replayed
