"""The files of a replay: the world's files, overlaid with what the replay has written.

Pure bookkeeping over two trees with the real functions of `os`: a path's own version lies below `root` under its full
name; a removed path is in `hidden`. A hidden directory that is made again is empty: nothing of the world shows through.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from typing import Final

COPY_BYTES_MAX: Final = 1024**3
"""Files of the world larger than this can't be changed in a replay."""
_PATH_DEPTH_MAX: Final = 512
_LAYER: Final = ".again"
LINKS_MAX: Final = 40
"""The number of links that Linux follows in one path."""


class Scratch:
    """Two trees as one. Not thread-safe by itself: the user holds a lock."""

    def __init__(self, root: str, functions: Functions) -> None:
        self.root = root
        self.real = functions
        self._hidden: set[str] = set()

    def above(self, path: str) -> str:
        """Return where a path's own version lies, if it has one."""
        return self.root + path

    def below(self, path: str) -> str:
        """Return the world's name of a path in the scratch folder."""
        is_ours = path == self.root or path.startswith(self.root + os.sep)
        return (path[len(self.root) :] or os.sep) if is_ours else path

    def settle(self, path: str) -> str:
        """Return the world's name of a path, following folders that are links in the scratch folder.

        A recording may name any path and any link: `above` of the result is below `root`, without a link on the way.
        Raises: OSError if links lead in a circle.
        """
        folder, name = os.path.split(_whole(path))
        return os.path.join(self.settle_folder(folder), name)  # noqa: PTH118 -- text

    def settle_folder(self, folder: str) -> str:
        """The same for a folder, which is followed if it is itself a link."""
        folder = _whole(folder)
        for _ in range(LINKS_MAX):
            link = self._find_link(folder)
            if not link:
                return folder
            target = os.path.join(os.path.dirname(link), self.real.readlink(self.above(link)))  # noqa: PTH118, PTH120 -- text
            folder = _whole(target + folder[len(link) :])
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), folder)

    def is_link(self, path: str) -> bool:
        """Whether the scratch version of a path is a link."""
        return stat.S_ISLNK(self.real.lstat(self.above(path)).st_mode)

    def _find_link(self, folder: str) -> str:
        """Return the outermost scratch link in a path; '' if there is none."""
        for each in _folders_of(folder):
            try:
                if self.is_link(each):
                    return each
            except (OSError, ValueError):
                return ""
        return ""

    def has(self, path: str) -> bool:
        """Whether the replay has its own version of this path."""
        return self.real.exists(self.above(path))

    def hide(self, path: str) -> None:
        """Hide a path of the world, and everything below it."""
        self._hidden.add(path)

    def is_hidden(self, path: str) -> bool:
        """Whether the world's version of a path is hidden."""
        for _ in range(_PATH_DEPTH_MAX):
            if path in self._hidden:
                return True
            parent = os.path.dirname(path)  # noqa: PTH120 -- text
            if parent == path:
                return False
            path = parent
        return True

    def find(self, path: str) -> str:
        """Return where to look up a path: in the scratch folder, in the world, or where nothing exists."""
        if self.has(path) or self.is_hidden(path):
            return self.above(path)
        return self.beneath(path)

    def beneath(self, path: str) -> str:
        """Return where a path lies that has no version here: in the world."""
        return path

    def _names_beneath(self, path: str) -> list[str]:
        return self.real.listdir(path)

    def exists(self, path: str) -> bool:
        """Whether anything exists under this path."""
        return self.real.exists(self.find(path))

    # ── Changes ─────────────────────────────────────────────────────────────────────────────────────
    def make_parents(self, path: str) -> None:
        """Create the scratch version of a path's parent directory. Raises: OSError if no parent is visible."""
        parent = os.path.dirname(path)  # noqa: PTH120 -- text
        found = self.find(parent)
        if not stat.S_ISDIR(self.real.stat(found).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        self.real.makedirs(self.above(parent), exist_ok=True)

    def take(self, path: str, *, with_content: bool = True) -> str:
        """Copy a path of the world into the scratch folder if it has no version there; return the place to write at."""
        ours, is_here = self.above(path), self.has(path)
        self.make_parents(path)
        source = self.beneath(path)
        if is_here or self.is_hidden(path) or not self.real.exists(source):
            return ours
        mode = self.real.lstat(source).st_mode
        if stat.S_ISLNK(mode):
            self.real.symlink(self.real.readlink(source), ours)
        elif stat.S_ISDIR(mode):
            self.real.makedirs(ours, exist_ok=True)
        elif with_content:
            if self.real.stat(source).st_size > COPY_BYTES_MAX:
                raise OSError(errno.EFBIG, "too large to be changed in a replay", path)
            self.real.copy(source, ours)
        return ours

    def take_tree(self, path: str) -> str:
        """Copy a path and everything below it into the scratch folder; return its place."""
        ours = self.take(path)
        if stat.S_ISDIR(self.real.lstat(ours).st_mode):
            for name in self.names(path):
                self.take_tree(os.path.join(path, name))  # noqa: PTH118 -- text
        return ours

    def names(self, path: str) -> list[str]:
        """List a directory, its own names in their order. Raises: OSError as `os.listdir` does."""
        found: list[str] = []
        ours = self.real.listdir(self.above(path)) if self.has(path) else None
        if not self.is_hidden(path) and (ours is None or self.real.exists(self.beneath(path))):
            prefix = path.rstrip(os.sep) + os.sep
            found += [n for n in self._names_beneath(path) if prefix + n not in self._hidden]
        elif ours is None:
            self.real.listdir(self.above(path))  # raises
        return [*found, *sorted(set(ours or ()).difference(found))]

    def is_plain(self, path: str) -> bool:
        """Whether a directory looks exactly as in the world."""
        if self.has(path) or self.is_hidden(path):
            return False
        prefix = path.rstrip(os.sep) + os.sep
        return not any(each.startswith(prefix) for each in self._hidden)

    def remove(self, path: str) -> None:
        """Remove a file or link. Raises: OSError as `os.unlink` does."""
        self.real.lstat(self.find(path))
        if self.has(path):
            self.real.unlink(self.above(path))
        elif stat.S_ISDIR(self.real.lstat(self.beneath(path)).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self.hide(path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory. Raises: OSError as `os.rmdir` does."""
        if self.names(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        if self.has(path):
            self.real.rmdir(self.above(path))
        self.hide(path)

    def make_directory(self, path: str, mode: int) -> None:
        """Make a directory. Raises: OSError as `os.mkdir` does."""
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.make_parents(path)
        self.real.mkdir(self.above(path), mode)

    def rename(self, source: str, target: str) -> None:
        """Move a file or a tree. Raises: OSError as `os.rename` does."""
        self.real.lstat(self.find(source))
        if source == target:
            return
        is_directory = stat.S_ISDIR(self.real.lstat(self.find(source)).st_mode)
        if is_directory and self.exists(target) and self.names(target):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), source, None, target)
        ours = self.take_tree(source)
        self.make_parents(target)
        if not is_directory and not self.has(target) and self.exists(target):
            # The world's target is of another kind: let the system raise
            self.take(target, with_content=False)
        self.real.rename(ours, self.above(target))
        self.hide(source)
        self.hide(target)

    def forget(self) -> None:
        """Remove everything that the replay has written."""
        shutil.rmtree(self.root, ignore_errors=True)


class Layer(Scratch):
    """What the code of tools that run again has written: it sees the replay's files, which don't see its own."""

    def __init__(self, lower: Scratch) -> None:
        super().__init__(os.path.join(lower.root, _LAYER), lower.real)  # noqa: PTH118 -- text
        self._lower = lower

    def below(self, path: str) -> str:
        """Return the world's name of a path in either scratch folder."""
        return self._lower.below(super().below(path))

    def beneath(self, path: str) -> str:
        """Return where a path lies that has no version here: in the replay's files, or in the world."""
        return self._lower.find(path)

    def _names_beneath(self, path: str) -> list[str]:
        return self._lower.names(path)

    def is_plain(self, path: str) -> bool:
        """Whether a directory looks exactly as in the world."""
        return super().is_plain(path) and self._lower.is_plain(path)


def _whole(path: str) -> str:
    """Return a path from `/` on, without `..`."""
    return os.sep + os.path.normpath(path).lstrip(os.sep)


def _folders_of(folder: str) -> Iterator[str]:
    """Yield a folder and its parents, the outermost first."""
    at = folder.find(os.sep, 1)
    while at > 0:
        yield folder[:at]
        at = folder.find(os.sep, at + 1)
    yield folder


class Functions:
    """The functions of `os` before anything replaced them."""

    def __init__(self) -> None:
        self.stat, self.lstat, self.listdir = os.stat, os.lstat, os.listdir
        self.mkdir, self.rmdir, self.unlink, self.rename = os.mkdir, os.rmdir, os.unlink, os.rename
        self.symlink, self.readlink, self.link = os.symlink, os.readlink, os.link

    def exists(self, path: str) -> bool:
        """Whether anything exists, even a broken link."""
        try:
            self.lstat(path)
        except (OSError, ValueError):
            return False
        return True

    def makedirs(self, path: str, *, exist_ok: bool) -> None:
        """Make a directory and its missing parents."""
        missing = []
        while not self.exists(path):
            missing.append(path)
            path = os.path.dirname(path)  # noqa: PTH120 -- text
        for each in reversed(missing):
            self.mkdir(each, 0o755)

    def copy(self, source: str, target: str) -> None:
        """Copy a file's content, mode and times."""
        shutil.copy2(source, target)
