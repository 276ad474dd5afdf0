"""The body of a request: whole up to the limit, and by size and hash above it.

The bytes that are sent are never changed. A body that can't be read twice (a generator, a pipe) is passed on in its own
pieces and hashed on its way; only a replay, which has to compare it before it answers, reads it first.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Final

from spanreplay.model import config
from spanreplay.runtime.run import active_run

__all__ = ["LargeBody", "Taken", "is_replaying", "pass_on", "take_async_pieces", "take_body", "take_pieces"]

_BLOCK_BYTES: Final = 1 << 20


class LargeBody:
    """The size and hash of a body above the limit; `is_whole` is False while it is being sent."""

    def __init__(self, pieces: Iterable[Any] = (), *, is_whole: bool = False) -> None:
        self.size = 0
        self.is_whole = is_whole
        self._hashed = hashlib.sha256()
        for piece in pieces:
            self.add(piece)

    def add(self, piece: bytes | bytearray | memoryview | str) -> None:
        """Add the next piece."""
        encoded = piece.encode("utf-8") if isinstance(piece, str) else piece
        self.size += memoryview(encoded).nbytes
        self._hashed.update(encoded)

    @property
    def sha256(self) -> str:
        """The hash of the pieces so far, in hexadecimal."""
        return self._hashed.hexdigest()


Taken = bytes | LargeBody


def is_replaying() -> bool:
    """Whether the request may be answered from a recording, so that all of it has to be compared first."""
    run = active_run()
    return run is not None and not run.resolver.connects


def take_body(body: Any) -> tuple[Taken, Any]:
    """A request's body, and a replacement to send that yields the same bytes in the same pieces.

    Exceptions of the agent's own iterator go on unchanged.
    """
    if body is None:
        return b"", None
    if isinstance(body, str):
        if len(body) <= config.BODY_BYTES_MAX:
            return body.encode("utf-8"), body
        starts = range(0, len(body), _BLOCK_BYTES)
        return LargeBody((body[at : at + _BLOCK_BYTES] for at in starts), is_whole=True), body
    if isinstance(body, bytes):
        return body, body
    if hasattr(body, "read"):
        return _take_file(body)
    with suppress(TypeError):  # anything else that holds its bytes: bytearray, array
        view = memoryview(body)
        return (bytes(view) if view.nbytes <= config.BODY_BYTES_MAX else LargeBody([view], is_whole=True)), body
    if hasattr(body, "__iter__"):
        return take_pieces(iter(body))
    return b"", body


def take_pieces(pieces: Iterator[Any]) -> tuple[Taken, Any]:
    """The body that an iterator yields, and a replacement that yields it again; above the limit, as it comes."""
    first: list[Any] = []
    size, keeps_all = 0, is_replaying()
    for piece in pieces:
        first.append(piece)
        size += len(piece)
        if size > config.BODY_BYTES_MAX and not keeps_all:
            large = LargeBody()
            return large, pass_on(chain(_let_go(first), pieces), large)
    return _join(first, size), first


async def take_async_pieces(pieces: AsyncIterator[Any]) -> tuple[Taken, list[Any], AsyncIterator[Any] | None]:
    """`take_pieces` for an asynchronous iterator: body, first pieces, and an iterator over all if there are more."""
    first: list[Any] = []
    size, keeps_all = 0, is_replaying()
    async for piece in pieces:
        first.append(piece)
        size += len(piece)
        if size > config.BODY_BYTES_MAX and not keeps_all:
            large = LargeBody()
            return large, [], _pass_on_async(first, pieces, large)
    return _join(first, size), first, None


def pass_on(pieces: Iterator[Any], large: LargeBody) -> Iterator[Any]:
    """The pieces as they come, hashed on their way."""
    for piece in pieces:
        large.add(piece)
        yield piece
    large.is_whole = True


async def _pass_on_async(first: list[Any], rest: AsyncIterator[Any], large: LargeBody) -> AsyncIterator[Any]:
    for piece in _let_go(first):
        large.add(piece)
        yield piece
    async for piece in rest:
        large.add(piece)
        yield piece
    large.is_whole = True


def _let_go(pieces: list[Any]) -> Iterator[Any]:
    """Yield a list's items, releasing each afterwards."""
    pieces.reverse()
    while pieces:
        yield pieces.pop()


def _join(pieces: list[Any], size: int) -> Taken:
    if size > config.BODY_BYTES_MAX:
        return LargeBody(pieces, is_whole=True)
    return b"".join(p.encode("utf-8") if isinstance(p, str) else bytes(p) for p in pieces)


# ── Files ───────────────────────────────────────────────────────────────────────────────────────────
def _take_file(file: Any) -> tuple[Taken, Any]:
    try:
        position = file.tell()
        file.seek(position)
    except (AttributeError, OSError, ValueError):  # a pipe: it can't be read again
        return _take_pipe(file)
    taken = _read_up_to(file, config.BODY_BYTES_MAX + 1)
    body: Taken = _join(taken, sum(map(len, taken)))
    if isinstance(body, LargeBody):
        while block := file.read(_BLOCK_BYTES):
            body.add(block)
    file.seek(position)
    return body, file


def _take_pipe(file: Any) -> tuple[Taken, Any]:
    if is_replaying():
        whole = file.read()
        taken = whole.encode("utf-8") if isinstance(whole, str) else whole
        return (taken if len(taken) <= config.BODY_BYTES_MAX else LargeBody([taken], is_whole=True)), io.BytesIO(taken)
    first = _read_up_to(file, config.BODY_BYTES_MAX + 1)
    body = _join(first, sum(map(len, first)))
    if isinstance(body, LargeBody):
        large = LargeBody()
        return large, _Pipe(first, file, large)
    return body, io.BytesIO(body)


def _read_up_to(file: Any, size: int) -> list[Any]:
    found: list[Any] = []
    while size > 0 and (block := file.read(min(size, _BLOCK_BYTES))):
        found.append(block)
        size -= len(block)
    return found


class _Pipe:
    """A file that can't be read twice, whose beginning has been read; hashed as it is sent."""

    def __init__(self, first: list[Any], file: Any, large: LargeBody) -> None:
        self._first = first[::-1]
        self._taken = 0
        """How much of the next block has been read: to cut it off would copy the rest for each small read."""
        self._file = file
        self._large = large

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __iter__(self) -> Iterator[Any]:
        while block := self.read(_BLOCK_BYTES):
            yield block

    def read(self, size: int | None = -1) -> Any:
        if size is None or size < 0:
            blocks = list(self)
            return blocks[0][:0].join(blocks) if blocks else b""
        if self._first:
            block = self._first[-1][self._taken : self._taken + size]
            self._taken += len(block)
            if self._taken == len(self._first[-1]):
                self._taken = 0
                self._first.pop()
        else:
            block = self._file.read(size)
        self._large.add(block)
        if not block and size:
            self._large.is_whole = True
        return block
