"""Files that are open when a process is forked: parent and child share their read position.

A fork for a unit reopens each of them to get its own position, and files in the overlay become the fork's own; a file
without a name is copied. This doesn't work for a database: one that is open for reading and writing knows the names of
files that belong to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import posix  # bypasses the functions that a replay replaces
import stat
from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = ["find_shared", "reopen"]

_OPEN: Final = "/proc/self/fd"
_FIRST: Final = 3
"""The standard streams stay as they are."""
_CHANGES: Final = os.O_CREAT | os.O_TRUNC | os.O_EXCL
_CHUNK_BYTES: Final = 1 << 20


class _OpenFile(NamedTuple):
    number: int
    path: str
    flags: int
    is_named: bool


def find_shared(root: str) -> str:
    """Return why open files prevent forking a process; empty if it can be forked. `root`: the overlay's folder."""
    try:
        here = posix.readlink("/proc/self/cwd")
        opened = list(_iter_files())
    except OSError:
        return "this system does not tell which files a process has open"
    if _is_within(here, root):
        return "the application's working directory is one that it has made"
    for each in opened:
        if each.is_named and _is_within(each.path, root) and each.flags & os.O_ACCMODE == os.O_RDWR:
            return f"the application has {os.path.basename(each.path)} open, for reading and writing"  # noqa: PTH119 -- text
    return ""


def reopen(before: str, now: str) -> None:
    """Reopen all files in a newly forked process; those in the folder `before` are now in `now`."""
    for each in list(_iter_files()):
        is_ours = _is_within(each.path, before)
        if not is_ours and each.is_named and each.flags & os.O_ACCMODE:
            continue  # our own: nothing else is written outside the overlay
        with contextlib.suppress(OSError):
            place = f"{_OPEN}/{each.number}"
            if is_ours and each.is_named:
                place = now + each.path[len(before) :]
            is_copied = not each.is_named and bool(each.flags & os.O_ACCMODE)
            made = _copy(place, now, each.flags) if is_copied else posix.open(place, each.flags | os.O_CLOEXEC)
            try:
                posix.lseek(made, posix.lseek(each.number, 0, os.SEEK_CUR), os.SEEK_SET)
                posix.dup2(made, each.number, posix.get_inheritable(each.number))
            finally:
                posix.close(made)


def _copy(place: str, folder: str, flags: int) -> int:
    """Make a nameless file with the content of another one."""
    path = f"{folder}/nameless"
    target = posix.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    source = posix.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while chunk := posix.read(source, _CHUNK_BYTES):
            posix.write(target, chunk)
        return posix.open(path, flags | os.O_CLOEXEC)
    finally:
        posix.unlink(path)
        posix.close(source)
        posix.close(target)


def _iter_files() -> Iterator[_OpenFile]:
    """Yield every open file except the standard streams. Raises: OSError if the system doesn't tell."""
    for name in posix.listdir(_OPEN):
        number = int(name)
        if number < _FIRST:
            continue
        with contextlib.suppress(OSError):  # the one that lists them is closed by now
            found = posix.fstat(number)
            if stat.S_ISREG(found.st_mode):
                flags = fcntl.fcntl(number, fcntl.F_GETFL) & ~_CHANGES
                yield _OpenFile(number, posix.readlink(f"{_OPEN}/{name}"), flags, found.st_nlink > 0)


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")
