"""Collects the leaves of a run while it goes on; they are read only at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final

from spanreplay.model.own_threads import make_lock
from spanreplay.recording.seal.tree import Tree

WAITING_MAX: Final = 32
"""Calls hashed in one batch, which takes a third of the time of hashing each one between the agent's calls."""
WAITING_BYTES_MAX: Final = 256 * 1024
KEPT_MAX: Final = 1024
"""Leaves kept individually; beyond this number, leaves that no other leaf can precede move into the tree."""


class Leaves:
    """Finished calls by number, hashed or waiting to be hashed. Safe with threads and signal handlers."""

    def __init__(self, first_open: Callable[[], int] = lambda: -1) -> None:
        """`first_open` returns a number below which every call has ended, -1 if none is known."""
        self._first_open = first_open
        self._tree = Tree()
        self._is_folding = False
        self._done: dict[int, str] = {}
        self._waiting: dict[int, tuple[tuple[bytes, ...], tuple[bytes, ...]]] = {}
        self._bytes = 0
        self.is_closed = False
        """Whether no more leaves are accepted."""
        self._lock = make_lock()

    def add(self, seq: int, leaf: str) -> bool:
        """Add a call whose leaf is known; return False if it comes too late to be counted."""
        with self._lock:
            if not self.is_closed:
                self._done[seq] = leaf
            return seq in self._done

    def defer(self, seq: int, described: tuple[bytes, ...], payloads: tuple[bytes, ...], size: int) -> bool:
        """Add a call whose leaf is `seal_leaf(described, *payloads)`; return False if it is too late to be counted.

        `size` is the approximate number of bytes kept for it.
        """
        self._waiting[seq] = (described, payloads)
        if self.is_closed:  # checked after adding: an entry that `close` missed sees the flag
            with self._lock:
                return self._waiting.pop(seq, None) is None
        self._bytes += size
        if len(self._waiting) >= WAITING_MAX or self._bytes > WAITING_BYTES_MAX:
            below = self._first_open() if len(self._done) >= KEPT_MAX else -1  # before our lock: takes the run's lock
            self._hash()
            if below >= 0:
                self._fold(below)
        return True

    def close(self) -> None:
        """Accept no more leaves: the manifest states those counted by now."""
        with self._lock:
            if not self.is_closed:
                self.is_closed = True
                self._hash_waiting()

    def extend(self, leaves: Iterable[tuple[int, str]]) -> None:
        """Add the leaves of another process."""
        self._done.update(leaves)

    def root(self) -> tuple[int, str]:
        """The number of leaves, and their Merkle root."""
        with self._lock:
            tree = Tree(self._tree)
            for _, leaf in self.take():
                tree.add(leaf)
        return tree.size, tree.root()

    def take(self) -> list[tuple[int, str]]:
        """The number and leaf of each call, ordered by number, except those already in the tree."""
        self._hash()
        return sorted(self._done.items())

    def _fold(self, below: int) -> None:
        """Move the leaves below a number into the tree: no other leaf can precede them any more."""
        with self._lock:
            if self._is_folding:  # a signal handler got here in between
                return
            self._is_folding = True
            try:
                for seq in sorted(seq for seq in list(self._done) if seq < below):
                    self._tree.add(self._done[seq])
                    del self._done[seq]
            finally:
                self._is_folding = False

    def _hash(self) -> None:
        with self._lock:  # no reader may come while a leaf is neither waiting nor done
            if not self.is_closed:
                self._hash_waiting()

    def _hash_waiting(self) -> None:
        self._bytes = 0
        for seq in list(self._waiting):
            found = self._waiting.get(seq)
            if found is None:  # a signal handler got here in between
                continue
            described, payloads = found
            # `seal_leaf`, inlined
            hashes = [sha256(payload).digest() for payload in payloads]
            self._done[seq] = sha256(b"".join((b"\x002 ", *described, *hashes))).hexdigest()
            self._waiting.pop(seq, None)
