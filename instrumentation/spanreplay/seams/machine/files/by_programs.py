"""Files that programs of the run have made or changed: inputs of the agent, wherever they lie.

Files of the code tree are read as they are, and files that the run has written itself are not inputs. But a formatter
rewrites what the agent wrote, and a build leaves files beside the agent's code. No program runs in a replay, so reading
such a file, or its metadata, is a call.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Final

from spanreplay.runtime.caller.places import is_code
from spanreplay.runtime.lanes import current_lane
from spanreplay.runtime.process.outside_io import unwatched

if TYPE_CHECKING:
    from spanreplay.runtime.answers import Answers
    from spanreplay.runtime.run import Run

_COARSE_NS: Final = 10_000_000
"""File times come from a clock that advances in steps of up to 10 ms."""


def is_by_program(run: Run, path: str, name: str) -> bool:
    """Whether a program of the run made or changed the file at a path that would not be an input otherwise.

    `name` is that of the call that it becomes (`open`, `stat`). In a replay: whether that call is the next recorded
    one.
    """
    written = run.written
    if written is None or not written.program_ns:
        return False
    if not run.resolver.keeps:
        return _is_next(run, run.resolver.answers, f"tool:{name}", written.name(path))
    with unwatched():
        try:
            found = os.lstat(path)
        except (OSError, ValueError):
            return written.has(path) and written.is_changed_by_program(path)
        if found.st_ctime_ns < written.program_ns - _COARSE_NS or _is_special(path):
            return False
        if written.has(path):
            return written.is_changed_by_program(path)
        if written.touched.has(path) or not is_code(path):
            return False
        if written.state is not None:
            written.state.note_made(path)
        return True


def _is_special(path: str) -> bool:
    """Whether there is something that holds no content: what is read from a pipe is gone for the agent, which waits."""
    try:
        return stat.S_IFMT(os.stat(path).st_mode) not in (stat.S_IFREG, stat.S_IFDIR)  # noqa: PTH116 -- text
    except OSError:  # a link that leads nowhere
        return False


def note_missing(run: Run, path: str) -> None:
    """Note that a path in the code tree was missing before any program ran; call it where the read is not a call."""
    written = run.written
    if written is None or written.state is None or written.program_ns or not run.resolver.keeps:
        return
    with unwatched():
        if "\0" not in path and not os.path.lexists(path) and is_code(path):
            written.state.note_missing(path)


def _is_next(run: Run, session: Answers, boundary: str, path: str) -> bool:
    call = session.index.find_next(current_lane(run.root_lane).path)
    return call is not None and call.boundary == boundary and json.dumps(path) in call.request
