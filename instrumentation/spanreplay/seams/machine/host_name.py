"""Seam: the name of the machine, as the agent's code reads it: in a replay it is the one of the recording.

The number of the process stays the real one: a program sends signals to it. Only what marks a message with it, so that
no other has the same name, gets the recorded one.
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
"""Code files of modules that mark what they make with the number of the process: names of messages."""


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
    """Patch `socket` or `platform`, or what `email.utils` or `mailbox` asks."""
    if module.__name__ not in _NAMES:
        _mark(module, patches)
        return
    for name in _NAMES[module.__name__]:
        patch_bare(patches, module, name, _SOURCES[(module.__name__, name)], None)
