"""Streams and a connection between an aiohttp response and the network: one kind records, the other serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spanreplay.runtime.calls.cancel import is_cancellation
from spanreplay.runtime.wire.http_body import CHUNK_ENDS, Body
from spanreplay.runtime.wire.http_call import HttpCall
from spanreplay.runtime.wire.http_reply import HttpReply

_READS = ("read", "readany", "readline", "readuntil", "readexactly", "readchunk", "read_nowait")
END_IS_SEEN = "at_eof"
"""Extra member of a reply: the agent checked for the end of the body before reading it."""
_ITERATORS = ("iter_chunked", "iter_any", "iter_chunks")


@dataclass(frozen=True)
class Streams:
    """The stream classes for the installed aiohttp."""

    tee: Callable[[Any, Body], Any]
    stored: Callable[[Any, HttpCall, HttpReply], Any]
    settle: Callable[[Any], None]


def build_streams(aiohttp: Any) -> Streams:
    """Build streams that an aiohttp response accepts. Raises: AttributeError if aiohttp's own are not as expected."""
    reader = aiohttp.StreamReader
    for name in (*_READS, *_ITERATORS, "_wait", "feed_data", "feed_eof", "on_eof", "set_exception"):
        getattr(reader, name)
    stored = _build_stored(reader)
    return Streams(_build_tee(reader), stored, lambda stream: stream.settle())


def _note(inner: Any, body: Body, found: Any, asked: int) -> None:
    """Note the result of one read, and the end of a transfer-encoding chunk if it came with it."""
    piece, is_end = found if isinstance(found, tuple) else (found, False)
    if is_end:
        body.keep_end(piece)
    else:
        body.keep(piece, is_full=len(piece) == asked)
    if inner.at_eof():
        body.finish("complete", is_alone=not piece and not is_end)


def _see_end(inner: Any, body: Body) -> bool:
    """Whether a body has ended; an agent that checks this need not read the end."""
    is_at_eof: bool = inner.at_eof()
    if is_at_eof and not body.end:
        body.reply.extra[END_IS_SEEN] = True
        body.finish("complete")
    return is_at_eof


def _build_tee(reader: Any) -> Any:
    class Tee(reader):  # type: ignore[misc]  # the class comes from the agent's aiohttp
        """Reads from the response's own stream and notes the bytes; ends its record exactly once."""

        __slots__ = ("_body", "_inner")

        def __init__(self, inner: Any, body: Body) -> None:
            self._inner = inner
            self._body = body

        async def _watch(self, reading: Any, asked: int = -1) -> Any:
            found = await self._body.aattempt(self._wait_for, reading)
            if isinstance(found, asyncio.IncompleteReadError):
                _note(self._inner, self._body, found.partial, -1)
                raise found
            _note(self._inner, self._body, found, asked)
            return found

        async def _wait_for(self, reading: Any) -> Any:
            try:
                with self._body.waiting():
                    return await reading
            except asyncio.IncompleteReadError as exc:
                return exc

        def at_eof(self) -> bool:
            return _see_end(self._inner, self._body)

        async def read(self, n: int = -1) -> Any:
            return await self._watch(self._inner.read(n), n)

        async def readany(self) -> Any:
            return await self._watch(self._inner.readany())

        async def readline(self, **kwargs: Any) -> Any:
            return await self._watch(self._inner.readline(**kwargs))

        async def readuntil(self, *args: Any, **kwargs: Any) -> Any:
            return await self._watch(self._inner.readuntil(*args, **kwargs))

        async def readexactly(self, n: int) -> Any:
            return await self._watch(self._inner.readexactly(n), n)

        async def readchunk(self) -> Any:
            return await self._watch(self._inner.readchunk())

        def read_nowait(self, n: int = -1) -> Any:
            found = self._inner.read_nowait(n)
            _note(self._inner, self._body, found, n)
            return found

        def set_exception(self, exc: BaseException, *cause: Any) -> None:
            self._body.finish("closed")  # the response is released: the rest is not read
            self._inner.set_exception(exc, *cause)

        def __repr__(self) -> str:
            return repr(self._inner)

        def __del__(self) -> None:
            self._body.finish("closed")

    kept = {*vars(Tee), *_ITERATORS, "_inner", "_body"}
    for name in dir(reader):
        if name not in kept and not name.startswith("__"):
            setattr(Tee, name, _delegate(name))
    return Tee


def _delegate(name: str) -> property:
    def read(self: Any) -> Any:
        return getattr(self._inner, name)

    def write(self: Any, value: Any) -> None:
        setattr(self._inner, name, value)

    return property(read, write)


def _build_stored(reader: Any) -> Any:
    class Stored(reader):  # type: ignore[misc]  # as above
        """Yields the recorded chunks, one each time that it would wait for the network."""

        __slots__ = ("_call", "_ends", "_reply", "_sent")

        def __init__(self, protocol: Any, call: HttpCall, reply: HttpReply) -> None:
            super().__init__(protocol, 2**16, loop=asyncio.get_running_loop())
            self._call = call
            self._reply = reply
            self._sent = 0
            self._ends = frozenset(reply.extra.get(CHUNK_ENDS, ()))
            if self._ends:
                self.begin_http_chunk_receiving()

        def settle(self) -> None:
            """Report the end of the body once nothing is left, as the network did."""
            if self._sent == len(self._reply.chunks) and not self._call.ends_alone(self._reply):
                self._end()

        def _end(self) -> None:
            if self._reply.end == "complete" and not self._eof:
                self._call.stream_over(self._reply)
                self.feed_eof()

        def at_eof(self) -> bool:
            is_next = self._sent == len(self._reply.chunks) and not self._buffer and END_IS_SEEN in self._reply.extra
            if is_next and self._call.is_end_due(self._reply):
                self._end()
            return bool(super().at_eof())

        def set_exception(self, exc: BaseException, *cause: Any) -> None:
            self._call.stream_over(self._reply)  # the response is released: the rest is not read
            super().set_exception(exc, *cause)

        async def _wait(self, func_name: str) -> None:
            if self._sent < len(self._reply.chunks):
                piece = self._reply.chunks[self._sent][1]
                await self._call.await_chunk(self._reply, self._sent)
                self.feed_data(piece)
                if self._sent in self._ends:
                    self.end_http_chunk_receiving()
                self._sent += 1
                self.settle()
                return
            failure = self._call.end_of_body(self._reply)
            if not is_cancellation(failure):
                await self._call.await_end(self._reply)
            self._call.stream_over(self._reply)
            if failure is not None:
                await self._call.settle(failure)
                raise failure
            self._end()

    return Stored


class StoredTransport(asyncio.Transport):
    """Accepts a request and sends it nowhere."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self._protocol = protocol
        self._is_closing = False

    def write(self, data: Any) -> None:
        """Discard the bytes."""

    def writelines(self, list_of_data: Any) -> None:
        """Discard the bytes."""

    def is_closing(self) -> bool:
        """Whether `close` was called."""
        return self._is_closing

    def close(self) -> None:
        """Close the connection."""
        if not self._is_closing:
            self._is_closing = True
            self._protocol.connection_lost(None)

    abort = close

    def pause_reading(self) -> None:
        """Do nothing: no data arrives by itself."""

    def resume_reading(self) -> None:
        """Do nothing: no data arrives by itself."""


class StoredConnector:
    """Stands for the session's connector when a stored connection is released."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _release(self, key: Any, protocol: Any, *, should_close: bool = False) -> None:
        if protocol.transport is not None:
            protocol.transport.close()
