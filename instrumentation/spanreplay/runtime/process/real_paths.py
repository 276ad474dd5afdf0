"""Resolves paths without looking up every folder above them each time.

A folder that was found once is assumed to stay: every lookup of a file asks which of a run's paths are data, code or
the machine's, and `os.path.realpath` looks up each part of a path.
"""

from __future__ import annotations

import os
import stat
from typing import Final

FOLDERS_MAX: Final = 4096
_folders: Final[dict[str, str]] = {}


def real_path(path: str) -> str:
    """As `os.path.realpath`."""
    if ".." in path or "\0" in path:  # where `..` leads depends on links
        return os.path.realpath(path)
    folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100 -- text
    found = os.path.join(real_folder(folder), name)  # noqa: PTH118 -- text
    try:
        is_link = stat.S_ISLNK(os.lstat(found).st_mode)
    except OSError:
        return found
    return os.path.realpath(found) if is_link else found


def real_folder(folder: str) -> str:
    """As `os.path.realpath`, for the whole name of a folder."""
    real = _folders.get(folder)
    if real is None:
        real = os.path.realpath(folder)
        if len(_folders) < FOLDERS_MAX and os.path.isdir(real):  # noqa: PTH112 -- text
            _folders[folder] = real
    return real


def forget_folders() -> None:
    """Resolve folders again: another agent may run in this process now."""
    _folders.clear()
