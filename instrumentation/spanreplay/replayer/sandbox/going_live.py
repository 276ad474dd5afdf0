"""Whether code that runs in a replay may act on the world."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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
    return acts(run.continuation) or any(crossing.is_live_by_plan for crossing in _around(run))


def runs_again(run: Run) -> bool:
    """Whether the running code is that of a tool which the plan runs again."""
    return any(c.body_lane is not None and c.served is None and not c.is_live_by_plan for c in _around(run))


def _around(run: Run) -> Iterator[Any]:
    """The calls that the running code is inside, the innermost first."""
    crossing = current_crossing(run.root_lane)
    while crossing is not None:
        yield crossing
        crossing = crossing.parent
