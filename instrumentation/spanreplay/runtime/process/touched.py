"""Paths that this process itself has made, changed or removed: reading those is not input."""

from __future__ import annotations

import os
from typing import Final

from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.process.real_paths import real_folder, real_path

PATHS_MAX: Final = 100_000
_NOT_LAST: Final = ("", os.curdir, os.pardir)


def place_of(path: str) -> str:
    """The whole name of a path; a link at its end is not followed."""
    folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100 -- text
    return os.path.join(real_folder(folder), name)  # noqa: PTH118 -- text


class Touched:
    """Paths by folder. Thread-safe."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}
        self._last: set[str] = set()
        """The last parts of all paths, a fast filter: most lookups have another."""
        self._made: set[str] = set()
        self._left = PATHS_MAX
        self._lock = make_lock()

    @property
    def is_full(self) -> bool:
        """Whether there was no room for a path."""
        return self._left <= 0

    def add(self, path: str) -> None:
        """Note that a path is about to be made, changed or removed."""
        folder, name = os.path.split(place_of(path))
        with self._lock:
            names = self._names.setdefault(folder, set())
            if name not in names and self._left > 0:
                names.add(name)
                self._last.add(name)
                self._left -= 1

    def add_directory(self, path: str) -> None:
        """Note that a directory is about to be made where nothing exists."""
        self.add(path)
        with self._lock:
            if len(self._made) < PATHS_MAX:
                self._made.add(place_of(path))

    def has(self, path: str) -> bool:
        """Whether the process has touched a path; links are not followed: their targets differ between machines."""
        last = path.rpartition(os.sep)[2]
        if not self._names or (last not in self._last and last not in _NOT_LAST):
            return False
        folder, name = os.path.split(place_of(path))
        return name in self._names.get(folder, ())

    def names_in(self, folder: str) -> frozenset[str]:
        """The touched names of a folder."""
        if not self._names:
            return frozenset()
        with self._lock:
            return frozenset(self._names.get(real_path(folder), ()))

    def has_made(self, folder: str) -> bool:
        """Whether the process has made a folder."""
        return bool(self._made) and real_path(folder) in self._made
