"""Seam: uvloop's event loop, which is none of asyncio's. Records nothing; names the lane of each task."""

from __future__ import annotations

from typing import Any

from spanreplay import lanes
from spanreplay._patch import Patches
from spanreplay.run import root_lane_of_active_run


def install(module: Any, patches: Patches) -> None:
    """Patch `uvloop.Loop`."""
    lanes.wrap_create_task(patches, module.Loop, root_lane_of_active_run)
