"""Seam: the name of the machine, as the agent's code reads it: in a replay it is the one of the recording.

The number of the process stays the real one: a program sends signals to it.
"""

from __future__ import annotations

from typing import Any, Final

from spanreplay._patch import Patches
from spanreplay.local.patching import patch_bare
from spanreplay.local.reads import source

_KIND: Final = "environment"
_NAMES: Final = {"socket": ("gethostname",), "platform": ("node",)}
_SOURCES: Final = {
    (module, name): source(_KIND, f"{module}.{name}", is_loose=True)
    for module, names in _NAMES.items()
    for name in names
}


def install(module: Any, patches: Patches) -> None:
    """Patch `socket` or `platform`."""
    for name in _NAMES[module.__name__]:
        patch_bare(patches, module, name, _SOURCES[(module.__name__, name)], None)
