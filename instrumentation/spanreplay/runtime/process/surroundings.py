"""Where a run happens that is a part of a process: its folders, and which of them have a new name each time."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.code_state import ABSENT, DIRECTORIES

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run


import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spanreplay.model import ids, owners
from spanreplay.model.here import PACKAGE
from spanreplay.runtime.caller.caller import AGENT, FRAMES_MAX, LIBRARY, PASS, is_among, origin_of
from spanreplay.runtime.lanes import current_place

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

_RUNNERS: Final = (owners.RUNNERS,)
"""Their caches and results are not the run's."""
_BETWEEN: Final = tuple(
    os.path.join(PACKAGE, *each, "")  # noqa: PTH118 -- as frames name it
    for each in (("seams", "machine"), ("replayer",), ("runtime", "caller"), ("runtime", "process"))
)
"""Code that stands between a function of `os` and its caller; other code of ours acts for the run."""


@dataclass(frozen=True)
class Surroundings:
    """A test runner's knowledge about the folders of a test; empty for a run that has its own process."""

    directory: str = ""
    """Paths are relative to this folder; '' is the working directory. It is code too, with everything below it."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Whole path of a folder → its name in a recording, for folders that are created anew each time."""
    is_test: bool = False
    """Whether the command line is the test runner's, and says nothing about the run."""

    def name(self, path: str) -> str:
        """A whole path as recordings name it."""
        for folder in sorted(self.aliases, key=len, reverse=True):
            if path == folder or path.startswith(folder + os.sep):
                return self.aliases[folder] + path[len(folder) :]
        return path

    def path(self, name: str) -> str:
        """The path of a name here; the inverse of `name`."""
        for folder, alias in self.aliases.items():
            if name == alias or name.startswith(alias + os.sep):
                return folder + name[len(alias) :]
        return name


class _Aside(threading.local):
    depth = 0


_aside: Final = _Aside()


@contextmanager
def set_aside() -> Iterator[None]:
    """A block whose files are not part of the run: a fixture that is set up while its test runs."""
    _aside.depth += 1
    try:
        yield
    finally:
        _aside.depth -= 1


def watch_outside(run: Run) -> Callable[[], bool]:
    """A function that tells whether the running code is outside a run that begins in this thread, now."""
    older = frozenset(t.ident for t in threading.enumerate()) - {threading.get_ident()}
    has_runner = any(name in sys.modules for name in ("_pytest", "coverage"))

    def is_outside() -> bool:
        if _aside.depth:
            return True
        if threading.get_ident() in older:
            lane, crossing = current_place(run.root_lane)
            if lane is run.root_lane and crossing is None:
                return True
        return has_runner and _is_runner()

    return is_outside


def _is_runner() -> bool:
    """Whether a test runner itself acts here, with none of the agent's code in between."""
    frame = sys._getframe(2)
    for _ in range(FRAMES_MAX):
        name = frame.f_code.co_filename
        if is_among(name, _RUNNERS):
            return True
        origin = origin_of(frame)
        is_between = origin == PASS or ids.is_stdlib_file(name) or name.startswith(_BETWEEN)
        if origin in (AGENT, LIBRARY) or not is_between or frame.f_back is None:
            return False
        frame = frame.f_back
    return False


TEMPORARY_NAME: Final = re.compile(r"(?<=/)tmp[a-z0-9_]{8}(?![a-z0-9_])")

FILES = "files"


def made_by(manifest: Mapping[str, Any], surroundings: Surroundings) -> Iterator[str]:
    """The files and directories that a recorded run made where nothing existed before, as whole names."""
    files, made = manifest.get(FILES), manifest.get(DIRECTORIES)
    names = [n for n, f in files.items() if isinstance(f, dict) and f.get("new")] if isinstance(files, dict) else []
    names += [str(each) for each in made] if isinstance(made, list) else []
    absent = manifest.get(ABSENT)
    names += [str(each) for each in absent] if isinstance(absent, list) else []
    for name in names:
        yield find_shown(name, surroundings)


def find_shown(name: str, surroundings: Surroundings) -> str:
    """The whole path of a name that `Written.show` returned."""
    base = os.path.realpath(surroundings.directory or os.getcwd())  # noqa: PTH109 -- text
    return os.path.normpath(os.path.join(base, surroundings.path(name)))  # noqa: PTH118 -- text
