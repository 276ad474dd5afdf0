"""Contents of a written file that don't survive the run: those that a program was given, and those removed again.

A file that the agent writes, hands to a program and removes is gone when the run ends. So its content counts when a
program starts, and when the file is removed, overwritten by a move or rewritten before any program has seen it. Each
file has one chain of hashes, however many contents it had.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

from spanreplay.model.own_threads import make_lock

FILES_MAX: Final = 1000
"""Files whose earlier contents count."""
READS_MAX: Final = 10_000
"""Contents that a run reads for this purpose, in total."""

Digest = Callable[[str], str]
"""A path → the hash of its content, '' if nothing is there."""


def _chain(before: str, digest: str) -> str:
    return hashlib.sha256(f"{before} {digest}".encode()).hexdigest()


class Versions:
    """Earlier contents of files, by path. Thread-safe."""

    def __init__(self) -> None:
        self.restate: Digest | None = None
        """In a replay: a path → the hash of its content in the words of the recording (its folders and process)."""
        self._restated: dict[str, str] = {}
        """Chains of such hashes."""
        self._lock = make_lock()
        self._fresh: dict[str, None] = {}
        self._chains: dict[str, tuple[int, str]] = {}
        self._shown: dict[str, str] = {}
        """The hash of the content that a program was given, until the run itself changes that file."""
        self._reads = 0

    def write(self, path: str) -> None:
        """Note that a file is about to be written."""
        with self._lock:
            self._shown.pop(path, None)
            if len(self._fresh) < FILES_MAX:
                self._fresh[path] = None

    def end(self, path: str, digest: Digest) -> None:
        """Count the content at a path that is about to go, unless a program has seen it."""
        with self._lock:
            for each in [p for p in self._fresh if p == path or p.startswith(path + "/")]:
                del self._fresh[each]
                self._count(each, digest)
            self._forget_shown(path)

    def move(self, source: str, target: str, digest: Digest) -> None:
        """Note that a file or folder is about to be moved."""
        self.end(target, digest)
        with self._lock:
            for each in [p for p in self._fresh if p == source or p.startswith(source + "/")]:
                del self._fresh[each]
                self._fresh[target + each[len(source) :]] = None
            self._forget_shown(source)

    def forget(self, path: str) -> None:
        """Stop tracking a path: its content is from now on written by other code, such as a database."""
        with self._lock:
            self._fresh.pop(path, None)
            self._forget_shown(path)

    def _forget_shown(self, path: str) -> None:
        for each in [p for p in self._shown if p == path or p.startswith(path + "/")]:
            del self._shown[each]

    def show(self, digest: Digest) -> None:
        """Count everything written so far: a program is about to start and can read it."""
        with self._lock:
            for each in list(self._fresh):
                self._shown[each] = self._count(each, digest)
            self._fresh.clear()

    def is_changed(self, path: str, digest: Digest) -> bool:
        """Whether a file differs from what a program was given, although the run has not changed it since."""
        with self._lock:
            shown = self._shown.get(path)
        return bool(shown) and digest(path) != shown

    def _count(self, path: str, digest: Digest) -> str:
        if self._reads >= READS_MAX or (path not in self._chains and len(self._chains) >= FILES_MAX):
            return ""
        self._reads += 1
        found = digest(path)
        if found:
            count, chain = self._chains.get(path, (0, ""))
            self._chains[path] = count + 1, _chain(chain, found)
            if self.restate is not None:
                self._restated[path] = _chain(self._restated.get(path, ""), self.restate(path))
        return found

    def describe(self, path: str) -> dict[str, Any]:
        """Describe, for the manifest, a file's earlier contents: their number and the hash of them all; {} if none."""
        count, chain = self._chains.get(path, (0, ""))
        restated = {"restated": self._restated[path]} if path in self._restated else {}
        return {"earlier": {"count": count, "sha256": chain, **restated}} if count else {}

    def paths(self) -> list[str]:
        """Return the files that had earlier contents."""
        with self._lock:
            return list(self._chains)
