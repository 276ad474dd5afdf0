"""Files that others have made or changed: inputs of the agent, wherever they lie.

Files of the code tree are read as they are, and files that the run has written itself are not inputs. But a formatter
rewrites what the agent wrote, a build leaves files beside the agent's code, and a request reads there what an earlier
one has stored. Neither the program nor the other request runs in a replay, so reading such a file, or its metadata, is
a call.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Final

from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.caller.places import is_code
from spanreplay.runtime.lanes import current_lane
from spanreplay.runtime.process.outside_io import unwatched
from spanreplay.runtime.process.touched import place_of

if TYPE_CHECKING:
    from spanreplay.runtime.answers import Answers
    from spanreplay.runtime.run import Run

PLACES_MAX: Final = 10_000
"""Paths that runs of one process have changed and that are remembered."""
_COARSE_NS: Final = 10_000_000
"""File times come from a clock that advances in steps of up to 10 ms."""


class _Changed:
    """The paths of the code tree that the process's runs have changed. Thread-safe."""

    def __init__(self) -> None:
        self.by: dict[str, str] = {}
        """Path → the last run that has changed it."""
        self._lock = make_lock()

    def add(self, place: str, run_id: str) -> None:
        with self._lock:
            self.by.pop(place, None)
            if len(self.by) >= PLACES_MAX:
                del self.by[next(iter(self.by))]
            self.by[place] = run_id

    def has_of_others(self, place: str, run_id: str) -> bool:
        """Whether another run has changed the path or a folder around it."""
        return any(self.by.get(each, run_id) != run_id for each in around(place))


_changed: Final = _Changed()


def around(place: str) -> list[str]:
    """Return a path and the folders around it."""
    found = [place]
    while (parent := os.path.dirname(found[-1])) != found[-1]:  # noqa: PTH120 -- text
        found.append(parent)
    return found


def note_changed(run: Run, place: str) -> None:
    """Note that a run is about to change a path of the code tree: to later runs of its process it is an input."""
    _changed.add(place, run.run_id)


def is_by_others(run: Run, path: str, name: str) -> bool:
    """Whether a program of the run, or another run, made or changed a file that would not be an input otherwise.

    `name` is that of the call that it becomes (`open`, `stat`). In a replay: whether that call is the next recorded
    one.
    """
    written = run.written
    if written is None:
        return False
    if not run.resolver.keeps:
        return _is_next(run, run.resolver.answers, f"tool:{name}", written.name(path))
    with unwatched():
        return bool(written.program_ns and _is_by_program(run, path)) or _is_by_another_run(run, path)


def _is_by_another_run(run: Run, path: str) -> bool:
    written = run.written
    if not _changed.by or written is None or "\0" in path or written.has(path) or written.touched.has(path):
        return False
    return _changed.has_of_others(place_of(path), run.run_id) and not _is_special(path)


def _is_by_program(run: Run, path: str) -> bool:
    written = run.written
    if written is None:
        return False
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
