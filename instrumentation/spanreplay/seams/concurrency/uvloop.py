"""Seam: uvloop's event loop, which is none of asyncio's.

Records nothing; names the lane of each task. uvloop keeps its own time and lets nobody see what it does next, so a
replay runs the program on asyncio's own loop, which passes for uvloop's.
"""

from __future__ import annotations

import asyncio
from typing import Any

from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run, root_lane_of_active_run
from spanreplay.seams.concurrency import lanes_of_work


def install(module: Any, patches: Patches) -> None:
    """Patch `uvloop.Loop`."""
    lanes_of_work.wrap_create_task(patches, module.Loop, root_lane_of_active_run)
    real = module.Loop.__new__

    def make(cls: type, *args: Any, **kwargs: Any) -> Any:
        run = active_run()
        if run is not None and run.session is not None:
            return type("Loop", (_StandIn,), {"_passes_for": cls})()
        return real(cls, *args, **kwargs)

    patches.replace(module.Loop, "__new__", staticmethod(make))


class _StandIn(asyncio.SelectorEventLoop):
    """A loop of asyncio's that is an instance of uvloop's class for those who ask, as `uvloop.run` does."""

    _passes_for: type = asyncio.SelectorEventLoop

    @property  # type: ignore[misc]  # a method of `object`, which mypy takes for an attribute
    def __class__(self) -> type:
        return self._passes_for
