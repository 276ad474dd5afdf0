"""Part of the file seam: who lists the folder around the recordings does not find them.

An agent that lists its working directory would show a model our folder and the redaction key in it, and its first run
would differ from all later ones, which find the folder there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from spanreplay.runtime.agent_patches import Patch, replace_in_os
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.dir_entries import Listed
from spanreplay.runtime.run import Run

MEMBER: Final = "own_folder"
"""Member of the environment: whether lists of the agent lack our folder."""
_stat: Final = os.stat  # the real one, whatever is patched later


def attach(run: Run) -> None:
    """State in a recording that lists lack our folder."""
    run.resolver.declare(MEMBER)


def install(patches: Patches, run: Run | None, data_dir: Path) -> None:
    """Leave this folder out of lists, unless the recording has it in them. Raises: OSError if nothing is around it."""
    if run is None or not (run.resolver.keeps or run.resolver.has(MEMBER)):
        return
    around = _stat(data_dir.parent)
    place, name = (around.st_dev, around.st_ino), data_dir.name
    own = {name, os.fsencode(name)}

    def is_around(path: Any) -> bool:
        try:
            found = _stat("." if path is None else path)
        except (OSError, ValueError, TypeError):  # the real function says why
            return False
        return (found.st_dev, found.st_ino) == place

    def listdir(patch: Patch, path: Any = None) -> Any:
        names = patch.__wrapped__(path)
        if own.isdisjoint(names) or not is_around(path):
            return names
        return [each for each in names if each not in own]

    def scandir(patch: Patch, path: Any = None) -> Any:
        entries = patch.__wrapped__(path)
        if not is_around(path):
            return entries
        return Listed((each for each in entries if each.name not in own), entries.close)

    replace_in_os(patches, "listdir", listdir)
    replace_in_os(patches, "scandir", scandir)
