"""Replacement for the result of `os.scandir`, for names that were recorded with their kind."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any, Final, Protocol

_getframe: Final = sys._getframe
_LINK: Final = "link"


def kind_of(entry: os.DirEntry[Any]) -> str:
    """`file`, `directory` or `other`, prefixed by `link to ` for a link; `link` for a dangling link."""
    name = "directory" if entry.is_dir() else "file" if entry.is_file() else "other"
    if not entry.is_symlink():
        return name
    return f"{_LINK} to {name}" if os.path.exists(entry.path) else _LINK  # noqa: PTH110 -- text or bytes


class Eyes(Protocol):
    """Looks up files for an entry."""

    def stat(self, frame: FrameType, path: Any, *, follow_symlinks: bool = True) -> os.stat_result:
        """`os.stat` on behalf of the code in a frame."""


class LookedEntry:
    """One name of a folder."""

    __slots__ = ("_eyes", "_kind", "name", "path")

    def __init__(self, eyes: Eyes, folder: Any, name: str, kind: str) -> None:
        """`kind` as returned by `kind_of`; if it is '', the file system is consulted."""
        self.name: Any = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path: Any = os.path.join(folder, self.name)  # noqa: PTH118 -- text or bytes
        self._eyes = eyes
        self._kind = kind

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """As `os.stat`."""
        found: os.stat_result = self._eyes.stat(_getframe(1), self.path, follow_symlinks=follow_symlinks)
        return found

    def _is(self, kind: str, test: Callable[[int], bool], *, follow_symlinks: bool) -> bool:
        if self._kind:
            return self._kind == kind or (follow_symlinks and self._kind == f"{_LINK} to {kind}")
        try:
            # Called by this module itself, so it is not a lookup by the agent
            return test(os.stat(self.path, follow_symlinks=follow_symlinks).st_mode)  # noqa: PTH116 -- any text
        except OSError:
            return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a directory."""
        return self._is("directory", stat.S_ISDIR, follow_symlinks=follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a regular file."""
        return self._is("file", stat.S_ISREG, follow_symlinks=follow_symlinks)

    def is_symlink(self) -> bool:
        """Whether it is a link."""
        if self._kind:
            return self._kind.startswith(_LINK)
        return self._is(_LINK, stat.S_ISLNK, follow_symlinks=False)

    def is_junction(self) -> bool:
        """False: there are no junctions here."""
        return False

    def inode(self) -> int:
        """The number of its inode."""
        found: os.stat_result = self._eyes.stat(_getframe(1), self.path, follow_symlinks=False)
        return found.st_ino


def _nothing() -> None:
    """Nothing is open."""


class Listed:
    """An iterator over entries, and a context manager."""

    def __init__(self, entries: Iterable[Any], close: Callable[[], object] = _nothing) -> None:
        """`close` lets go of what the entries come from."""
        self._entries = iter(entries)
        self._close = close

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Listed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the folder, if it is open."""
        self._close()
