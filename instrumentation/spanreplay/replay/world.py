"""Sets up the files of a replayed process: a scratch folder, what the recording's run made is not there yet."""

from __future__ import annotations

import atexit
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from spanreplay import config
from spanreplay._patch import Patches
from spanreplay.local.written import made_by
from spanreplay.replay import hermetic, overlay

if TYPE_CHECKING:
    from spanreplay.replay.session import Session
    from spanreplay.run import Run

_SHARED = ("spanreplay-run-", "pymp-")
"""What names in the folder for temporary files begin with that the processes of one run share: ours, and Python's."""
_OWN_SETTINGS = ("SPANREPLAY_REPLAY_REPORT", "SPANREPLAY_REDACT_KEY")


def own_paths() -> list[str]:
    """Files that we ourselves write in a replay."""
    named = [config.read_setting(name) for name in _OWN_SETTINGS]
    named.append(os.environ.get("SPANREPLAY_DOCTOR", ""))
    return [str(config.read_data_dir()), *(os.path.abspath(each) for each in named if each)]  # noqa: PTH100 -- text


def install(session: Session, run: Run, patches: Patches) -> overlay.Overlay:
    """Put the overlay beneath everything, and deny what goes past it."""
    root = os.path.realpath(tempfile.mkdtemp(prefix="spanreplay-files-"))
    own = own_paths()
    shared = tuple(os.path.join(os.path.realpath(tempfile.gettempdir()), each) for each in _SHARED)  # noqa: PTH118 -- text
    made = overlay.Overlay(root, own, lambda: hermetic.is_live(run), lambda: session.has_gone_on, shared)
    for path in made_by(session.recording.root.manifest, Path.cwd()):
        made.scratch.hide(path)
    overlay.install(made, patches)
    allowed = (root + os.sep, *shared, *(os.path.realpath(each) for each in own))
    hermetic.install(session, run, lambda path: path == root or path.startswith(allowed))
    atexit.register(made.scratch.forget)
    return made
