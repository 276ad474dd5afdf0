"""Seam: `uuid.uuid1`, `uuid4` and what newer Pythons have (`uuid6`, `uuid7`), as the agent's code uses them.

The distribution uuid_utils makes the same in native code: LangChain takes the ids of its messages and runs from it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Final

from spanreplay.runtime.agent_patches import patch_with
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.reads import Source, source
from spanreplay.seams.machine.clock.randomness import ask

_NAMES: Final = ("uuid1", "uuid4", "uuid6", "uuid7")


def _unpack_native(text: str) -> Any:
    import uuid_utils

    return uuid_utils.UUID(text)


def _make_sources(module: str, unpack: Callable[[str], Any]) -> dict[str, Source]:
    return {name: source("random", f"{module}.{name}", pack=str, unpack=unpack) for name in _NAMES}


_SOURCES: Final = {
    "uuid": _make_sources("uuid", uuid.UUID),
    "uuid_utils": _make_sources("uuid_utils", _unpack_native),
    "uuid_utils.compat": _make_sources("uuid_utils.compat", uuid.UUID),
}


def install(module: Any, patches: Patches) -> None:
    """Patch `uuid`, `uuid_utils` or `uuid_utils.compat`, which gives UUIDs of the standard library's class."""
    for name, shown in _SOURCES[module.__name__].items():
        real = getattr(module, name, None)
        if real is not None:
            patch_with(patches, module, name, ask(real, shown, name))
