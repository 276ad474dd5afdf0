"""Seam: connectionless sockets of `socket` and of asyncio's event loops, and name lookups."""

from __future__ import annotations

from typing import Any

from spanreplay.runtime.patches import Patches


def install(module: Any, patches: Patches) -> None:
    """Patch `socket`, or the event loops of `asyncio`."""
    if module.__name__ != "socket":
        from spanreplay.seams.machine.sockets import async_datagrams

        async_datagrams.install(module, patches)
        return
    from spanreplay.seams.machine.sockets import datagrams, name_lookups

    name_lookups.install(module, patches)
    datagrams.install(module, patches)
