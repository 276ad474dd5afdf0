"""Seam: the machine's name as the agent's code reads it; a replay returns the recorded name.

The process ID stays real, because a program sends signals to it. Only code that puts the process ID into a name to make
it unique, such as a message ID, gets the recorded ID.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from spanreplay.runtime.agent_patches import Patch, asks, install_patch, patch_bare, read
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.reads import source

_KIND: Final = "environment"
_NAMES: Final = {"socket": ("gethostname",), "platform": ("node",)}
_SOURCES: Final = {
    (module, name): source(_KIND, f"{module}.{name}", is_loose=True)
    for module, names in _NAMES.items()
    for name in names
}


_PROCESS: Final = source(_KIND, "os.getpid", is_loose=True)
_getframe: Final = sys._getframe
_marking: Final[set[str]] = set()
"""Source files of modules that put the process ID into the names they make, such as message IDs."""


def _mark(module: Any, patches: Patches) -> None:
    _marking.add(module.__file__)
    real = os.getpid
    if not isinstance(getattr(real, "__self__", None), Patch):

        def call(patch: Patch) -> int:
            frame = _getframe(1)
            if frame.f_code.co_filename not in _marking or not asks(frame):
                return real()
            return int(read(_PROCESS, real))

        install_patch(patches, os, "getpid", call, Patch("os", "getpid", real))


def install(module: Any, patches: Patches) -> None:
    """Patch `socket` or `platform`, or `os.getpid` as `email.utils` or `mailbox` calls it."""
    if module.__name__ not in _NAMES:
        _mark(module, patches)
        return
    for name in _NAMES[module.__name__]:
        patch_bare(patches, module, name, _SOURCES[(module.__name__, name)], None)
