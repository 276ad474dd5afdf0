"""Carries the run of the code that starts a thread or a pool job into that thread or job."""

from __future__ import annotations

from spanreplay.model import guard
from spanreplay.runtime.caller.caller import handed
from spanreplay.runtime.caller.running import RUN
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.lanes import Lane, current_lane, is_inside
from spanreplay.runtime.order.lane_end import LaneEnd
from spanreplay.runtime.run import active_run


class carried:  # noqa: N801 -- reads as a statement: `with carried_run:`
    """Enter, in another thread, the run of the code that created this object."""

    __slots__ = ("_run", "_token", "ends_lane")

    def __init__(self, lane: Lane) -> None:
        self._run = RUN.get()
        run = self._run or active_run()
        if run is not None:
            run.lock_order.is_shared = True
            guard.guarded("what a run begins", run.order.begin, lane.path)
        self.ends_lane = True
        """Whether the end of the block is the end of its lane; a pool job's lane ends when its future does."""

    def end_of(self, lane: Lane) -> LaneEnd | None:
        """The end of a lane of the carried run; None without one."""
        run = self._run or active_run()
        return None if run is None else LaneEnd(run, lane.path, is_inside=is_inside(lane))

    def __enter__(self) -> None:
        self._token = None if self._run is None else set_variable(RUN, self._run)
        if self._token is not None:
            handed.enter_run()

    def __exit__(self, *exc_info: object) -> None:
        run = active_run()
        if run is not None and self.ends_lane:
            guard.guarded("the end of a lane", LaneEnd(run, current_lane(run.root_lane).path).end_thread)
        if self._token is not None:
            reset_variable(RUN, self._token)
