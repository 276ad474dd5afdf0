"""Files and directories that hold recordings: private to this user, or refused with one line.

Somebody who shares the machine, or who wrote the repository in which an agent works, may have put a link, a
FIFO or a file of their own where we expect ours.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

__all__ = ["is_plain_file", "make_private", "open_trusted", "refuse_link"]

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def refuse_link(path: Path) -> None:
    """Raise PermissionError if the path itself is a symbolic link; a missing path passes."""
    if path.is_symlink():
        raise PermissionError(errno.EPERM, f"it is a link to {os.readlink(path)!r}; name the directory itself")  # noqa: PTH115 -- text


def make_private(path: Path) -> Path:
    """Make a directory that only this user can enter, or close an existing one to others; missing parents likewise.

    Raises: PermissionError for a link, or if the mode can't be changed; other OSErrors.
    """
    if not path.parent.exists():
        make_private(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        refuse_link(path)
    # By descriptor: the directory that is checked is the one that is changed.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if mode & _OTHERS:
            try:
                os.fchmod(descriptor, stat.S_IMODE(mode) & ~_OTHERS & 0o777)
            except PermissionError as exc:
                said = f"it belongs to another user and is open to others (mode {stat.S_IMODE(mode):o})"
                raise PermissionError(errno.EPERM, said) from exc
    finally:
        os.close(descriptor)
    return path


def is_plain_file(path: Path) -> bool:
    """Whether this is a regular file, not a link, FIFO, device or directory; False if it is gone."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def open_trusted(path: Path, *, is_named: bool) -> IO[bytes]:
    """Open a file that nobody else can have changed, for reading.

    A file that the user named may be a link and may belong to root, like files that a cluster mounts.
    Raises: PermissionError for another user's file, one that others may write, a link or a non-regular file; OSError.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if is_named else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise PermissionError(errno.EPERM, "it is a link") from exc
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise PermissionError(errno.EPERM, "it is not a regular file")
        if found.st_uid != os.geteuid() and not (is_named and found.st_uid == 0):
            raise PermissionError(errno.EPERM, f"it belongs to user {found.st_uid}, not to you ({os.geteuid()})")
        if found.st_mode & _WRITABLE:
            raise PermissionError(errno.EPERM, f"others can write to it (mode {stat.S_IMODE(found.st_mode):o})")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
