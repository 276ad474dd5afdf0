"""Seam: programs that the agent starts with `subprocess`, `os` or `asyncio`."""

from __future__ import annotations

from typing import Any

from spanreplay.runtime.patches import Patches


def install(module: Any, patches: Patches) -> None:
    """Patch `subprocess.Popen`, `os.system` and `os.kill`, or `asyncio`."""
    if module.__name__ == "asyncio":
        from spanreplay.seams.machine.processes import async_processes

        async_processes.install(module, patches)
        return
    from spanreplay.seams.machine.processes import processes

    processes.install(module, patches)
