"""The leaves of one run while it goes on; only its end asks for them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

WAITING_MAX: Final = 32
"""Calls hashed in a row, which takes a third of the time that it takes one by one between calls of the agent."""
WAITING_BYTES_MAX: Final = 256 * 1024


class Leaves:
    """Finished calls, hashed or waiting to be, by number. Thread-safe, also against signal handlers."""

    def __init__(self) -> None:
        self._done: dict[int, str] = {}
        self._waiting: dict[int, tuple[tuple[bytes, ...], tuple[bytes, ...]]] = {}
        self._bytes = 0
        self._lock = threading.RLock()

    def add(self, seq: int, leaf: str) -> None:
        """A call whose leaf is known."""
        self._done[seq] = leaf

    def defer(self, seq: int, described: tuple[bytes, ...], payloads: tuple[bytes, ...], size: int) -> None:
        """A call whose leaf is `seal_leaf(described, *payloads)`; `size` is about what is kept of it, in bytes."""
        self._waiting[seq] = (described, payloads)
        self._bytes += size
        if len(self._waiting) >= WAITING_MAX or self._bytes > WAITING_BYTES_MAX:
            self._hash()

    def extend(self, leaves: Iterable[tuple[int, str]]) -> None:
        """Leaves of another process."""
        self._done.update(leaves)

    def take(self) -> list[tuple[int, str]]:
        """The number of each call and its leaf, in the order of the numbers."""
        self._hash()
        return sorted(self._done.items())

    def _hash(self) -> None:
        with self._lock:  # nobody may ask for leaves while one is neither waiting nor done
            self._bytes = 0
            for seq in list(self._waiting):
                found = self._waiting.get(seq)
                if found is None:  # a signal handler got here in between
                    continue
                described, payloads = found
                # `seal_leaf`, without its calls
                hashes = [sha256(payload).digest() for payload in payloads]
                self._done[seq] = sha256(b"".join((b"\x002 ", *described, *hashes))).hexdigest()
                self._waiting.pop(seq, None)
