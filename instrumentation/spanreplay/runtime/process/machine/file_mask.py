"""The mode bits that a process denies the files it makes (umask): recorded, and the same in a replay."""

from __future__ import annotations

import posix
import re
from typing import Any, Final

__all__ = ["MEMBER", "FileMask", "read_mask"]

MEMBER: Final = "umask"
"""Member of an environment."""
_STATUS: Final = "/proc/self/status"
_LINE: Final = re.compile(rb"^Umask:\s*([0-7]+)$", re.MULTILINE)
_STRICT: Final = 0o077
_MAX: Final = 0o777
_OF_OTHERS: Final = 0o002


def read_mask() -> int:
    """This process's mask. Where the system doesn't tell, it is set for a moment, to one that is strict."""
    try:
        with open(_STATUS, "rb") as file:  # noqa: PTH123 -- our own read
            found = _LINE.search(file.read())
    except OSError:
        found = None
    if found is not None:
        return int(found[1], 8)
    mask = posix.umask(_STRICT)
    posix.umask(mask)
    return mask


class FileMask:
    """The recorded mask in one replay."""

    def __init__(self, recorded: Any) -> None:
        self._recorded = recorded if type(recorded) is int and 0 <= recorded <= _MAX else None
        self._before: int | None = None

    def give(self) -> None:
        """Make files as the recorded process made them; writable for everybody only where this one makes such."""
        if self._recorded is not None and self._before is None:
            self._before = read_mask()
            posix.umask(self._recorded | (self._before & _OF_OTHERS))

    def take_back(self) -> None:
        """Make files as before."""
        if self._before is not None:
            posix.umask(self._before)
            self._before = None
