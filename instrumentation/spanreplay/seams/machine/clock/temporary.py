"""Seam: random names that `tempfile` draws for the agent's temporary files and folders.

Names drawn for a library that opens files for the agent count too, such as one that writes spreadsheets. The names
appear in commands, prompts and messages: a replay has the same names, in its overlay.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Final

from spanreplay.runtime.agent_patches import read
from spanreplay.runtime.caller.caller import asks_for_files, is_ours
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.temporary_files import replace_unlink
from spanreplay.runtime.reads import source

_getframe: Final = sys._getframe
NAME: Final = source("random", "tempfile.name", is_loose=True)
_OWN_USE: Final = "_get_default_tempdir"
"""Tries out folders, once per process."""


def is_tempfile(frame: FrameType) -> bool:
    """Whether the code in this frame belongs to `tempfile`."""
    return frame.f_code.co_filename == getattr(sys.modules.get("tempfile"), "__file__", "")


def asks_for_temporary(frame: FrameType | None) -> bool:
    """Whether the agent makes a temporary file or folder here, while `tempfile` draws its name or makes it."""
    while frame is not None and (is_tempfile(frame) or is_ours(frame.f_code.co_filename)):  # it opens with our `open`
        if frame.f_code.co_name == _OWN_USE:
            return False
        frame = frame.f_back
    return frame is not None and asks_for_files(frame)


def install(module: Any, patches: Patches) -> None:
    """Patch the sequence of names of `tempfile`."""
    cls = module._RandomNameSequence
    real = cls.__next__

    def draw_name(self: Any) -> str:
        if not asks_for_temporary(_getframe(1)):
            return str(real(self))
        return str(read(NAME, lambda: real(self)))

    draw_name.__name__, draw_name.__qualname__ = "__next__", f"{cls.__name__}.__next__"
    patches.replace(cls, "__next__", draw_name)
    replace_unlink(patches, module._TemporaryFileCloser)
