"""Seam: `uuid.uuid1`, `uuid4` and what newer Pythons have (`uuid6`, `uuid7`), as the agent's code uses them."""

from __future__ import annotations

import uuid
from typing import Any, Final

from spanreplay.runtime.agent_patches import patch_with
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.reads import source
from spanreplay.seams.machine.clock.randomness import ask

_SOURCES: Final = {
    name: source("random", f"uuid.{name}", pack=str, unpack=uuid.UUID) for name in ("uuid1", "uuid4", "uuid6", "uuid7")
}


def install(module: Any, patches: Patches) -> None:
    """Patch `uuid`."""
    for name, shown in _SOURCES.items():
        real = getattr(module, name, None)
        if real is not None:
            patch_with(patches, module, name, ask(real, shown, name))
