"""The standard streams in a replay: terminals if they were when recorded, wherever the replay's own output goes.

Programs print colours, bars and tables for a terminal, by its width.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from spanreplay.model.call import Recording
from spanreplay.runtime.agent_patches import patch_with
from spanreplay.runtime.caller.caller import is_ours
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.environment import STREAMS, TERMINALS

_CELLS_MAX: Final = 10_000


def restore(recording: Recording, patches: Patches) -> None:
    """Let the standard streams be what they were for a recording's program."""
    recorded = recording.root.env.get(TERMINALS)
    if not isinstance(recorded, Mapping):  # of an older version
        return
    sizes = {fd: _to_size(recorded.get(name)) for fd, name in enumerate(STREAMS)}
    for fd, name in enumerate(STREAMS):
        stream = getattr(sys, f"__{name}__")
        if hasattr(stream, "__dict__"):
            patches.replace(stream, "isatty", _told(sizes[fd] is not None))
    real_isatty, real_size = os.isatty, os.get_terminal_size

    def isatty(fd: int, /) -> bool:
        return sizes[fd] is not None if fd in sizes else real_isatty(fd)

    def get_terminal_size(fd: int = 1, /) -> os.terminal_size:
        size = sizes.get(fd)
        if fd not in sizes:
            return real_size(fd)
        if not size:
            raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
        return os.terminal_size(size)

    patch_with(patches, os, "isatty", isatty, _is_not_ours)
    patch_with(patches, os, "get_terminal_size", get_terminal_size, _is_not_ours)


def _to_size(recorded: Any) -> tuple[int, ...] | None:
    """The columns and lines of a terminal, () if nobody knows them; None for what was no terminal."""
    if recorded is None:
        return None
    size = tuple(recorded) if isinstance(recorded, list) else ()
    return size if len(size) == 2 and all(type(each) is int and 0 <= each <= _CELLS_MAX for each in size) else ()


def _told(is_terminal: bool) -> Callable[[], bool]:
    return lambda: is_terminal


def _is_not_ours(frame: Any) -> bool:
    return not is_ours(frame.f_code.co_filename)
