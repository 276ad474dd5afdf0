"""Seam: programs that the agent starts with `subprocess`, `os` or an event loop."""

from __future__ import annotations

from typing import Any

from spanreplay.runtime.patches import Patches


def install(module: Any, patches: Patches) -> None:
    """Patch `subprocess.Popen`, `os.system` and `os.kill`, or `asyncio`, or uvloop's loop."""
    if module.__name__ in ("asyncio", "uvloop"):
        from spanreplay.seams.machine.processes import async_processes

        if module.__name__ == "asyncio":
            async_processes.install(module, patches)
        else:
            async_processes.patch_loop(patches, module.Loop)
        return
    from spanreplay.seams.machine.processes import processes

    processes.install(module, patches)
