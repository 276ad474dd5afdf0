"""The output written to a standard stream: its beginning as bytes, and a hash of the whole."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from spanreplay.model.own_threads import make_lock

if TYPE_CHECKING:
    from spanreplay.redact import RunRedactor


class KeptOutput:
    """Thread-safe. Chunks are kept up to a limit; the hash and the size cover all of them."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = make_lock()
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._hash = hashlib.sha256()
        self._total = 0

    def add(self, chunk: Any, count: Any) -> None:
        """Note that a chunk, or `count` bytes of it, has been written."""
        piece = bytes(chunk)[: count if isinstance(count, int) else None]
        with self._lock:
            self._total += len(piece)
            if self._kept_bytes < self._bytes_max:
                self._kept.append(piece)
                self._kept_bytes += len(piece)
            self._hash.update(piece)

    def summarize(self, redactor: RunRedactor, streams: Iterable[Any]) -> dict[str, Any]:
        """The output as size in bytes, redacted text, and the hash of that text (or of the bytes if they were cut).

        `streams` are flushed first: the agent may have replaced the real one.
        """
        for stream in streams:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        with self._lock:
            raw, total = b"".join(self._kept), self._total
            digest = self._hash.hexdigest()
        text = redactor.text(raw.decode("utf-8", "backslashreplace"))
        if total == len(raw):
            digest = digest_of(text)
        return {"bytes": total, "sha256": digest, "text": text}


def digest_of(text: str) -> str:
    """SHA-256 of a written text, as hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
