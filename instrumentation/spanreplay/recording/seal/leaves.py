"""The leaves of one run while it goes on; only its end asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final

from spanreplay.model.own_threads import make_lock
from spanreplay.recording.seal.tree import Tree

WAITING_MAX: Final = 32
"""Calls hashed in a row, which takes a third of the time that it takes one by one between calls of the agent."""
WAITING_BYTES_MAX: Final = 256 * 1024
KEPT_MAX: Final = 1024
"""Leaves that are kept one by one; of more, those that no other can come before go into the tree."""


class Leaves:
    """Finished calls, hashed or waiting to be, by number. Thread-safe, also against signal handlers."""

    def __init__(self, first_open: Callable[[], int] = lambda: -1) -> None:
        """`first_open` gives a number below which every call has ended, -1 if nobody knows one."""
        self._first_open = first_open
        self._tree = Tree()
        self._is_folding = False
        self._done: dict[int, str] = {}
        self._waiting: dict[int, tuple[tuple[bytes, ...], tuple[bytes, ...]]] = {}
        self._bytes = 0
        self.is_closed = False
        """Whether no leaf is taken any more."""
        self._lock = make_lock()

    def add(self, seq: int, leaf: str) -> bool:
        """A call whose leaf is known; False if it comes too late to be counted."""
        with self._lock:
            if not self.is_closed:
                self._done[seq] = leaf
            return seq in self._done

    def defer(self, seq: int, described: tuple[bytes, ...], payloads: tuple[bytes, ...], size: int) -> bool:
        """A call whose leaf is `seal_leaf(described, *payloads)`; False if it comes too late to be counted.

        `size` is about what is kept of it, in bytes.
        """
        self._waiting[seq] = (described, payloads)
        if self.is_closed:  # asked after: what `close` has not seen sees it
            with self._lock:
                return self._waiting.pop(seq, None) is None
        self._bytes += size
        if len(self._waiting) >= WAITING_MAX or self._bytes > WAITING_BYTES_MAX:
            below = self._first_open() if len(self._done) >= KEPT_MAX else -1  # before the lock: it takes the run's
            self._hash()
            if below >= 0:
                self._fold(below)
        return True

    def close(self) -> None:
        """Take no leaf any more: what is counted now is what the manifest says."""
        with self._lock:
            if not self.is_closed:
                self.is_closed = True
                self._hash_waiting()

    def extend(self, leaves: Iterable[tuple[int, str]]) -> None:
        """Leaves of another process."""
        self._done.update(leaves)

    def root(self) -> tuple[int, str]:
        """How many leaves there are, and their Merkle root."""
        with self._lock:
            tree = Tree(self._tree)
            for _, leaf in self.take():
                tree.add(leaf)
        return tree.size, tree.root()

    def take(self) -> list[tuple[int, str]]:
        """The number of each call and its leaf, in the order of the numbers; without those that are in the tree."""
        self._hash()
        return sorted(self._done.items())

    def _fold(self, below: int) -> None:
        """Put the leaves below a number into the tree: no other comes before them any more."""
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
        with self._lock:  # nobody may ask for leaves while one is neither waiting nor done
            if not self.is_closed:
                self._hash_waiting()

    def _hash_waiting(self) -> None:
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
