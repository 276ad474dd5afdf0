"""Seam: sockets of `socket` and of asyncio's event loops, TLS above them, and name lookups."""

from __future__ import annotations

from typing import Any

from spanreplay.runtime.patches import Patches


def install(module: Any, patches: Patches) -> None:
    """Patch `socket`, `ssl`, `select`, `selectors`, or the event loops of `asyncio` and `uvloop`."""
    if module.__name__ in ("select", "selectors"):
        from spanreplay.seams.machine.sockets import readiness

        readiness.install(module, patches)
        return
    if module.__name__ == "ssl":
        from spanreplay.seams.machine.sockets import tls_streams

        tls_streams.install(module, patches)
        return
    if module.__name__ != "socket":
        from spanreplay.seams.machine.sockets import async_datagrams, async_streams

        async_streams.install(module, patches)
        if module.__name__ == "asyncio":
            async_datagrams.install(module, patches)
        return
    from spanreplay.seams.machine.sockets import datagrams, name_lookups

    name_lookups.install(module, patches)
    datagrams.install(module, patches)
