"""Returns of calls whose order depends on timing."""

from __future__ import annotations

import threading
from typing import Final

from spanreplay.model import guard
from spanreplay.runtime.caller.reporting import is_tool_alone
from spanreplay.runtime.lanes import Lane, current_place, has_lane, is_plumbing_here
from spanreplay.runtime.order.loops import running_loop
from spanreplay.runtime.run import Run

RETURNED: Final = "|returned|"
"""In a name, separates a lane from the number of a return; returns are noted while there are several threads."""


def _lane_here(run: Run) -> Lane | None:
    """The lane of a thread that runs no event loop; None inside a call and in our own plumbing."""
    lane, crossing = current_place(run.root_lane)
    if crossing is not None or is_plumbing_here.get() or running_loop() is not None:
        return None
    return lane if has_lane() or threading.current_thread() is threading.main_thread() else None


def note_return(run: Run, lane: Lane | None = None) -> None:
    """Note that the calling thread goes on with an answer; in a replay, wait for its turn. For runs of several threads.

    `lane` is the caller's lane, if the caller already knows that the return counts. In threads of reporting tools no
    order is kept: their requests are no calls.
    """
    if lane is None:
        lane = None if run.is_ended else guard.guarded("naming a return", _lane_here, run)
        if lane is None:
            return
    elif run.is_ended or running_loop() is not None:
        return
    if run.resolver.keeps and lane is not run.root_lane and is_tool_alone():
        return
    run.order.go_on(f"{lane.path}{RETURNED}{lane.next_index('returned')}")
