"""Listening sockets that a process got from whoever started it: systemd, circus, `uvicorn --fd`, BentoML.

The program takes them up by their descriptor. A replay is started by hand and has none, so it gets others in their
place, on which nothing listens: the requests come from the recording.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any, Final

MEMBER: Final = "inherited_sockets"
"""In a root's environment: descriptor, family and type of each."""
_SOCKETS_MAX: Final = 16
_DESCRIPTORS: Final = range(3, 1 << 16)
"""Those that a recording may name; a manager with many open files of its own hands on high numbers."""
_LIST: Final = "/dev/fd"


def describe() -> dict[str, Any]:
    """The member, if the process has such sockets; to be called before it opens any of its own."""
    try:
        found = [int(name) for name in os.listdir(_LIST) if name.isdecimal()]  # noqa: PTH208 -- pathlib costs start-up
    except OSError:
        return {}
    rows = [row for number in sorted(found) if number in _DESCRIPTORS for row in _describe(number)]
    return {MEMBER: rows[:_SOCKETS_MAX]} if rows else {}


def _describe(number: int) -> list[list[int]]:
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return []
        import socket

        with socket.socket(fileno=os.dup(number)) as found:
            listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            return [[number, int(found.family), int(found.type)]] if listens else []
    except OSError:  # closed meanwhile, or of a family that Python does not know
        return []


def give(environment: Any) -> None:
    """Open sockets in the place of the recorded ones, where the descriptor is free."""
    rows = environment.get(MEMBER)
    for row in rows[:_SOCKETS_MAX] if isinstance(rows, list) else ():
        if isinstance(row, list) and len(row) == 3 and all(type(each) is int for each in row):
            with contextlib.suppress(OSError):
                _open(*row)


def _open(number: int, family: int, kind: int) -> None:
    import socket

    families = {int(socket.AF_INET), int(socket.AF_INET6), int(getattr(socket, "AF_UNIX", socket.AF_INET))}
    if number not in _DESCRIPTORS or family not in families or kind != int(socket.SOCK_STREAM):
        return
    try:
        os.fstat(number)
    except OSError:
        with socket.socket(family, kind) as made:
            os.dup2(made.fileno(), number, inheritable=False)
