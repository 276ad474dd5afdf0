"""Seam: the number that Engine.IO puts into the id of a session, which counts the sessions of its process.

A replay of one session does not have those before it. The random part of the id comes from `secrets`.
"""

from __future__ import annotations

from typing import Any, Final

from spanreplay.runtime.agent_patches import read
from spanreplay.runtime.patches import Patches, require
from spanreplay.runtime.reads import source

_NUMBER: Final = source("random", "engineio.sequence_number")


def install(module: Any, patches: Patches) -> None:
    """Patch `engineio.base_server`."""

    def generate_id(wrapped: Any, server: Any, args: Any, kwargs: Any) -> Any:
        server.sequence_number = read(_NUMBER, lambda: server.sequence_number)
        return wrapped(*args, **kwargs)

    require(module.BaseServer, "generate_id")
    patches.wrap(module.BaseServer, "generate_id", generate_id)
