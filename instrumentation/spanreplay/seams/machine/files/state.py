"""Changes that the agent makes inside its code tree: these files are state, not code, and their beginning is recorded.

Files of the code tree are read as they are (`places.py`). A file that a run changes is state, wherever it lies. So
before a path of the tree is changed for the first time, its content is recorded as a call (`lookup`); if nothing is
there, the manifest names the path. A replay's overlay begins with both (`replayer/sandbox/beginning.py`), so that reads
before the change get the same answers too.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import config
from spanreplay.model.call import Effect, Kind
from spanreplay.model.code_state import APPENDS, AT, ENTRIES, KEEPS, NAMES, NOTHING
from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.caller.places import is_code
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.lanes import current_lane
from spanreplay.runtime.process.outside_io import unwatched
from spanreplay.runtime.process.real_paths import real_path
from spanreplay.runtime.process.touched import place_of
from spanreplay.seams.machine.files.by_others import around, note_changed

if TYPE_CHECKING:
    from spanreplay.runtime.answers import Answers
    from spanreplay.runtime.run import Run

PATHS_MAX: Final = 10_000
"""Paths kept in memory."""
ABSENT_MAX: Final = config.ABSENT_MAX
"""Paths in the manifest."""
_LOOKUP: Final = "tool:lookup"
ENTRIES_MAX: Final = 2000
"""Files and folders below one folder."""


class State:
    """The paths of the code tree that this process has changed, and those that it read before. Thread-safe."""

    def __init__(self) -> None:
        self.is_shared = False
        """Whether other runs of the process may read what this one changes, and are not replayed with it."""
        self._known: set[str] = set()
        self._read: set[str] = set()
        self._unrecorded: set[str] = set()
        self._missing: set[str] = set()
        self._absent: dict[str, None] = {}
        self._lock = make_lock()

    def note_read(self, run: Run, path: str, whole: str = "") -> None:
        """Note that a file of the code tree is about to be read; `whole` is its real path, if known."""
        whole = whole or real_path(path)
        if whole in self._read and whole not in self._unrecorded:
            return
        with self._lock:
            is_lost = whole in self._unrecorded
            if len(self._read) < PATHS_MAX:
                self._read.add(whole)
        if is_lost:
            run.hole(_too_large(path))

    def list_read(self) -> list[str]:
        """Return the files of the code tree that were read."""
        with self._lock:
            return sorted(self._read)

    def begin(self, run: Run, path: str, there: str, how: str) -> None:
        """Record, once, what is at a path that is about to be changed. Raises: ReplayMiss."""
        written = run.written
        with unwatched():
            if written is None or not is_code(path):
                return
            place = os.path.realpath(path) if there == "link" and how in (APPENDS, KEEPS) else place_of(path)
            is_same = how == NOTHING and there
            if is_same:
                return
            is_first = run.process_group is None or not run.resolver.keeps or run.process_group.is_first_at(place)
            if self.is_shared:
                note_changed(run, place)
            if not self._take(place, is_new=not there and is_first):
                return
            arguments = {"path": written.name(path), "change": how}
            is_served = run.continuation is not None and not run.continuation.has_gone_on
            is_told = is_served or _is_beside_unit(run)
            if not is_told and (run.resolver.keeps or run.process_group is None):
                if not there or not is_first:
                    return
            elif not _was_recorded(run, run.resolver.answers, arguments["path"]):
                return
        call_sync(
            lambda: FunctionCall(Kind.TOOL.value, "lookup", Effect.READ.value, arguments),
            lambda: {"there": there, AT: written.show(place), ENTRIES: self._collect(run, place, how)},
        )

    def _take(self, place: str, *, is_new: bool) -> bool:
        """Whether nothing is known yet of a path or a folder around it; marks the path as known."""
        with self._lock:
            if len(self._known) >= PATHS_MAX or any(each in self._known for each in around(place)):
                return False
            self._known.add(place)
            if is_new and len(self._absent) < ABSENT_MAX:
                self._absent[place] = None
            return True

    def note_absent(self, path: str) -> None:
        """Note that nothing is at a path where code other than the agent's makes a file, in the code tree or not."""
        place = place_of(path)
        with self._lock:
            if len(self._absent) < ABSENT_MAX // 2:  # the rest is reserved for the agent
                self._absent[place] = None

    def note_missing(self, path: str) -> None:
        """Note that the agent found nothing at a path of the code tree before any program ran."""
        with self._lock:
            if len(self._missing) < PATHS_MAX:
                self._missing.add(place_of(path))

    def note_made(self, path: str) -> None:
        """Note that a program has made or changed a path: a replay begins without it if it was missing."""
        place = place_of(path)
        with self._lock:
            if place in self._missing and len(self._absent) < ABSENT_MAX:
                self._absent[place] = None

    def list_absent(self) -> list[str]:
        """Return the paths that did not exist before the run made something there."""
        with self._lock:
            return list(self._absent)

    # ── What is there ───────────────────────────────────────────────────────────────────────────────
    def _collect(self, run: Run, place: str, how: str) -> dict[str, dict[str, Any]]:
        """Return path below `place` ('' for itself) → kind, mode and content; notes a hole if that is too much."""
        found: dict[str, dict[str, Any]] = {}
        left = config.FILE_BYTES_MAX
        with unwatched():
            waiting = [place]
            while waiting:
                each = waiting.pop()
                entry = _describe(each, 0 if how == NAMES else left)
                found["" if each == place else os.path.relpath(each, place)] = entry
                left -= len(entry.get("content", b""))
                if entry["kind"] == "directory":
                    inside = [os.path.join(each, name) for name in sorted(os.listdir(each), reverse=True)]  # noqa: PTH118, PTH208 -- text
                    waiting += [one for one in inside if one not in self._known]
                elif entry.get("is_too_large") and how != NAMES:
                    self._lose(run, each, how)
                if len(found) + len(waiting) > ENTRIES_MAX:
                    run.hole(f"the agent changed {place!r}, which holds more than {ENTRIES_MAX} files")
                    return {"": found[""]}
        return found

    def _lose(self, run: Run, place: str, how: str) -> None:
        """Note a hole for content that is not recorded, if the run depends on it now or when it reads it later."""
        if how == KEEPS or place in self._read:
            run.hole(_too_large(place))
        elif how == APPENDS:
            with self._lock:
                self._unrecorded.add(place)


def _is_beside_unit(run: Run) -> bool:
    """Whether this is the replay of a unit, and the start of its process or what runs beside it: both find the files
    of the unit, which may be of a later time."""
    extent = None if run.resolver.keeps else run.resolver.answers.extent
    if extent is None:
        return False
    return not extent.has_started or extent.is_outside(current_lane(run.root_lane).path)


def _was_recorded(run: Run, session: Answers, path: str) -> bool:
    """Whether to make the call, in a replay of several processes.

    The first process that reaches a path makes the call, which is a race: a replay keeps the recorded winner.
    """
    lane, index = current_lane(run.root_lane).path, session.index
    shown = json.dumps(path)
    at = itertools.takewhile(lambda call: call is not None, (index.at(lane, _LOOKUP, n) for n in range(PATHS_MAX)))
    return any(call is not None and call.seq not in index.used and shown in call.request for call in at)


def _too_large(path: str) -> str:
    return f"the agent changed and read {path!r}, which is larger than {config.FILE_BYTES_MAX} bytes"


def _describe(path: str, bytes_max: int) -> dict[str, Any]:
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            return {"kind": "link", "target": os.readlink(path)}  # noqa: PTH115 -- text
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISDIR(found.st_mode):
            return {"kind": "directory", "mode": mode}
        if not stat.S_ISREG(found.st_mode):
            return {"kind": "other"}
        entry = {"kind": "file", "mode": mode, "times": [found.st_atime_ns, found.st_mtime_ns]}
        if found.st_size > bytes_max:
            return {**entry, "is_too_large": True}
        with open(path, "rb") as source:  # noqa: PTH123 -- opened by spanreplay: not a call
            return {**entry, "content": source.read(bytes_max)}
    except OSError:
        return {"kind": "other"}
