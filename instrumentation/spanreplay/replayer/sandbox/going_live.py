"""Whether code that runs in a replay may act on the world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spanreplay.runtime.lanes import current_crossing

if TYPE_CHECKING:
    from spanreplay.runtime.answers import Continuation
    from spanreplay.runtime.run import Run

__all__ = ["acts", "is_live", "runs_again"]


def acts(continuation: Continuation | None) -> bool:
    """Whether a run has gone on live, and its effects are real."""
    return continuation is not None and continuation.acts


def is_live(run: Run) -> bool:
    """Whether the running code is inside a call that the plan lets go live, or a resumed run has gone live."""
    if acts(run.continuation):
        return True
    crossing = current_crossing(run.root_lane)
    while crossing is not None:
        if crossing.is_live_by_plan:
            return True
        crossing = crossing.parent
    return False


def runs_again(run: Run) -> bool:
    """Whether the running code is that of a tool which the plan runs again."""
    crossing = current_crossing(run.root_lane)
    while crossing is not None:
        if crossing.body_lane is not None and crossing.served is None and not crossing.is_live_by_plan:
            return True
        crossing = crossing.parent
    return False
