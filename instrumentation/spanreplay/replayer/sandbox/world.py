"""Sets up a replay's files: writes go to a scratch folder, the recorded run's files are hidden, the rest is denied.

A replay may share its process: the guard ignores threads that existed before it and have no lane of the run, and a test
runner's own work.
"""

from __future__ import annotations

import os
import posix  # os.getpid is a recorded read
import shutil
import tempfile
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from spanreplay.model import config
from spanreplay.replayer.sandbox import beginning, hermetic, imports, native_calls, open_files, overlay, terminals
from spanreplay.replayer.sandbox.going_live import acts, is_live, runs_again
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.surroundings import Surroundings, made_by

if TYPE_CHECKING:
    from spanreplay.replayer.resolve.session import Session
    from spanreplay.runtime.run import Run

_SHARED = ("spanreplay-run-", "pymp-")
"""Prefixes of names in the temporary folder that the processes of one run share: ours, and Python's."""
_FORK = ".fork-"
_OWN_SETTINGS = (
    "SPANREPLAY_REPLAY_REPORT", "SPANREPLAY_REPLAY_ANSWER", "SPANREPLAY_REPLAY_ASKED", "SPANREPLAY_REDACT_KEY"
)  # fmt: skip


def own_files() -> list[str]:
    """Return the files outside our directory that we ourselves write in a replay."""
    named = [config.read_setting(name) for name in _OWN_SETTINGS]
    named.append(os.environ.get("SPANREPLAY_DOCTOR", ""))
    return [os.path.abspath(each) for each in named if each]  # noqa: PTH100 -- text


def own_paths() -> list[str]:
    """Return all paths that we ourselves write in a replay."""
    return [str(config.read_data_dir()), *own_files()]


def _find_folder() -> str | None:
    """Return the folder for a replay's files if the command that started it removes them; else None."""
    named = config.read_setting("SPANREPLAY_REPLAY_FOLDER")
    return named if os.path.isdir(named) else None  # noqa: PTH112 -- text


def _of_fork(root: str, pid: int) -> str:
    """Return the folder of a process forked from the one with this folder."""
    return f"{root}{_FORK}{pid}"


class World:
    """The files of one replay and the guard around them, until they are removed."""

    def __init__(self, session: Session, files: overlay.Overlay, sandbox: hermetic.Sandbox, patches: Patches) -> None:
        self._session = session
        self.files = files
        self._sandbox = sandbox
        self._patches = patches
        # At the latest when the process ends
        self._forget = weakref.finalize(self, files.scratch.forget)

    def find_shared(self) -> str:
        """Return why forks of this process can't have their own files; empty if they can."""
        return open_files.find_shared(self.files.scratch.root)

    def move(self, run: Run) -> None:
        """Copy everything written so far, in a process that was forked for a longer recording."""
        scratch, surroundings = self.files.scratch, Surroundings()
        before, scratch.root = scratch.root, _of_fork(scratch.root, posix.getpid())
        shutil.copytree(before, scratch.root, symlinks=True)
        open_files.reopen(before, scratch.root)
        recording = self._session.recording
        for path in made_by(recording.root.manifest, surroundings):
            scratch.hide(path)
        opened = partial(self._session.hidden.open_response, run.redactor)
        beginning.lay(scratch, recording, surroundings, opened, with_reads="looks" not in run.level)
        self._session.recorded_env.lay(scratch)

    def forget_fork(self, pid: int) -> None:
        """Remove the files of a fork of this process that has ended."""
        shutil.rmtree(_of_fork(self.files.scratch.root, pid), ignore_errors=True)

    def remove(self) -> None:
        """Restore the replaced functions; the replay's files can still be read, until `forget`."""
        self._sandbox.close()
        self._patches.undo()
        self.files.close()

    def forget(self) -> None:
        """Remove the replay's files."""
        self._forget()


def install(
    session: Session,
    run: Run,
    patches: Patches,
    surroundings: Surroundings | None = None,
    is_outside: Callable[[], bool] = lambda: False,
) -> World:
    """Install the overlay beneath everything and deny what bypasses it, except where `is_outside` the run."""
    root = os.path.realpath(tempfile.mkdtemp(prefix="spanreplay-files-", dir=_find_folder()))
    own = own_paths()
    shared = tuple(os.path.join(os.path.realpath(tempfile.gettempdir()), each) for each in _SHARED)  # noqa: PTH118 -- text
    again = (lambda: runs_again(run)) if session.plan.runs_again else None
    made = overlay.Overlay(
        root, own, lambda: is_live(run), lambda: acts(session.continuation) or is_outside(), shared, again
    )
    missing = list(made_by(session.recording.root.manifest, surroundings or Surroundings()))
    for path in missing:
        made.scratch.hide(path)
    opened = partial(session.hidden.open_response, run.redactor)
    lay = partial(
        beginning.lay, made.scratch, session.recording, surroundings or Surroundings(), opened,
        with_reads="looks" not in run.level, after=missing if session.extent is not None else (),
    )  # fmt: skip
    lay()
    if session.extent is not None:
        session.extent.begin_files = partial(lay, is_after=True)
    session.recorded_env.lay(made.scratch)
    overlay.install(made, patches)
    if surroundings is None:
        terminals.restore(session.recording, patches)
    imports.install(made, patches)
    allowed = (root + os.sep, root + _FORK, *shared, *(os.path.realpath(each) for each in own))
    sandbox = hermetic.install(session, run, lambda path: path == root or path.startswith(allowed), is_outside)
    native_calls.hear_fork_exec(patches, sandbox.hear_program)
    native_calls.hear_kept_symbols(patches, sandbox.hear_symbol)
    return World(session, made, sandbox, patches)
