"""The body of one response while the agent reads it: recorded, or served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

from spanreplay.model import guard
from spanreplay.runtime.calls import chains
from spanreplay.runtime.lanes import inside_call
from spanreplay.runtime.wire.http_reply import HttpReply, is_end_of_body

T = TypeVar("T")
CHUNK_ENDS: Final = "chunk_ends"
"""Member of a reply whose agent reads whole chunks of the transfer encoding: numbers of the pieces that end one."""


class Call(Protocol):
    """The call that a body belongs to, as the body uses it."""

    def elapsed_ms(self) -> int:
        """Milliseconds since the request."""

    def has_room(self, piece: bytes) -> bool:
        """Whether the next piece is kept; counts its bytes."""

    def mark(self) -> None:
        """A part of a stream has come."""

    def mark_end(self, body: Body) -> None:
        """A body has ended in a read of its own."""

    def ended(self, body: Body) -> None:
        """A body has ended."""

    def waiting(self) -> inside_call:
        """A block that waits for the network."""

    def restack(self, exc: BaseException, reply: HttpReply | None = None) -> BaseException:
        """A served exception with its recorded stacks."""


class Body:
    """The body of one response while the agent reads it; `reply.chunks` grows with it."""

    def __init__(self, call: Call, reply: HttpReply) -> None:
        self.reply = reply
        self.end = ""
        self.error: BaseException | None = None
        self.at = ""
        """Where a library raised `error`, in its seam's words."""
        self.chain: dict[str, Any] | None = None
        """The stacks of `error` and of the exceptions behind it, if it was raised through `attempt`."""
        self.is_timed_out = False
        """Whether `error` is what the library above made of the exception that `chain` describes."""
        self._call = call
        self._is_joined = False
        self._pieces: list[bytes] = []

    def keep(self, piece: bytes, *, is_full: bool = False) -> None:
        """Keep the result of one read.

        `is_full`: as many bytes as were asked for, so the next read may be in the same chunk.
        """
        if not piece or self.end or not self._call.has_room(piece):
            return
        if not self._is_joined:
            self._seal()
            self.reply.chunks.append((self._call.elapsed_ms(), b""))
            self._call.mark()
        self._pieces.append(piece)
        self._is_joined = is_full

    def waiting(self) -> inside_call:
        """A block that waits for the network."""
        return self._call.waiting()

    def keep_end(self, piece: bytes) -> None:
        """Keep the result of a read that ended a chunk of the transfer encoding; it may be empty."""
        if self.end or not self._call.has_room(piece):
            return
        self._seal()
        self.reply.chunks.append((self._call.elapsed_ms(), piece))
        self._call.mark()
        self.reply.extra.setdefault(CHUNK_ENDS, []).append(len(self.reply.chunks) - 1)
        self._is_joined = False

    def let_go(self) -> None:
        """Drop the kept chunks."""
        self._pieces, self.reply.chunks = [], []

    def _seal(self) -> None:
        if self._pieces:
            ms, _ = self.reply.chunks[-1]
            self.reply.chunks[-1] = (ms, b"".join(self._pieces))
            self._pieces = []

    def finish(self, end: str, error: BaseException | None = None, *, is_alone: bool = True) -> None:
        """The body was read to its end (`complete`), broke (`error`) or was left (`closed`); the first report counts.

        `is_alone`: the end came in a read of its own, not in that of the last piece.
        """
        if not self.end:
            self._seal()
            self.end, self.error = end, error
            if is_alone and is_end_of_body(end, error):
                self._call.mark_end(self)
            self._call.ended(self)

    def attempt(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function that reads from the network; if it raises, the body ends with that exception."""
        return chains.attempt(self._broke, function, *args)

    async def aattempt(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """`attempt` for a coroutine function."""
        return await chains.aattempt(self._broke, function, *args)

    def _broke(self, exc: BaseException) -> BaseException:
        if not self.end:
            self.chain = guard.guarded("recording a stack", chains.describe, exc)
            self.finish("error", exc)
        return exc


class ServedBody(Body):
    """A body from the recording; notes nothing."""

    def keep(self, piece: bytes, *, is_full: bool = False) -> None:
        """No-op."""

    def keep_end(self, piece: bytes) -> None:
        """No-op."""

    def finish(self, end: str, error: BaseException | None = None, *, is_alone: bool = True) -> None:
        """No-op."""

    def _broke(self, exc: BaseException) -> BaseException:
        return self._call.restack(exc, self.reply)
