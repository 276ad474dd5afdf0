"""Bodies that are sent: their bytes are unchanged, and reading them costs no more than sending them."""

from __future__ import annotations

import hashlib
from typing import Any

from spanreplay.model import config
from spanreplay.runtime.wire.sent_body import LargeBody, take_body

PIECE = 16 << 10


class Counted(bytes):
    """Bytes that count how many of them are copied by slices."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(key, slice):
            Counted.copied += len(found)
            return Counted(found)
        return found


class Pipe:
    """A file that can't be read twice."""

    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int) -> bytes:
        """The next bytes."""
        taken = min(size, self.left)
        self.left -= taken
        return Counted(bytes([self.left % 251]) * taken)


def test_s46_pipe_read_in_small_pieces_is_copied_once() -> None:
    """A client that reads a large pipe piece by piece gets the same bytes, and no byte is copied again and again."""
    size = config.BODY_BYTES_MAX + 3 * PIECE + 7
    pipe, sent = Pipe(size), hashlib.sha256()
    taken, body = take_body(pipe)
    assert isinstance(taken, LargeBody)
    Counted.copied = 0
    while piece := body.read(PIECE):
        sent.update(piece)
    assert (taken.is_whole, taken.size, taken.sha256) == (True, size, sent.hexdigest())
    assert Counted.copied <= size
