"""The path behind a descriptor as the agent sees it: in a replay the real path, not the overlay's."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Any, Final

from spanreplay.runtime.caller.places import DEVICES
from spanreplay.runtime.process.outside_io import unwatched

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

_readlink: Final = os.readlink
_fstat: Final = os.fstat
_PATH_BYTES: Final = 1024
_GONE: Final = " (deleted)"


def path_of(run: Run, descriptor: int) -> str:
    """Return the full path of an open file or folder; '' if it has none, such as a pipe or a removed file."""
    try:
        if stat.S_IFMT(_fstat(descriptor).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            return ""
        path = _find(descriptor)
    except OSError:
        return ""
    if not path.startswith("/") or path.endswith(_GONE):
        return ""
    return path if run.overlay is None else run.overlay.scratch.below(path)


def _find(descriptor: int) -> str:
    if sys.platform != "darwin":
        with unwatched():
            return _readlink(f"/proc/self/fd/{descriptor}")
    import fcntl  # type: ignore[unreachable,unused-ignore]  # there only

    found: bytes = fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(_PATH_BYTES))
    return os.fsdecode(found.partition(b"\0")[0])


def resolve(run: Run, path: str, folder: Any) -> str:
    """Resolve a path against an open folder; unchanged if it is not relative or the folder is unknown.

    In a replay a library may name a file by its path in the replay's own folder, which it was given: the result is the
    real path.
    """
    if path.startswith("/") and run.overlay is not None:
        return run.overlay.scratch.below(path)
    if not isinstance(folder, int) or path.startswith("/"):
        return path
    found = path_of(run, folder)
    return f"{found}/{path}" if found else path


def describe_file(run: Run | None, file: Any) -> str:
    """Describe a file that a program is given: its path, or `file` if it has no path that is valid in another run."""
    try:
        descriptor = file if isinstance(file, int) else file.fileno()
    except (AttributeError, OSError, ValueError):
        return "file"
    path = "" if run is None else path_of(run, descriptor)
    if not path or path.startswith(DEVICES):
        return "file"
    return path if run is None or run.written is None else run.written.name(path)
