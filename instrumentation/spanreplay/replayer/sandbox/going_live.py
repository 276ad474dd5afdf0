"""Whether code that runs in a replay may act on the world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spanreplay.runtime.lanes import current_crossing

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

__all__ = ["is_live"]


def is_live(run: Run) -> bool:
    """Whether the running code is inside a call that the plan lets go live, or a resumed run has gone live."""
    if run.session is not None and run.session.has_gone_on:
        return True
    crossing = current_crossing(run.root_lane)
    while crossing is not None:
        if crossing.is_live_by_plan:
            return True
        crossing = crossing.parent
    return False
