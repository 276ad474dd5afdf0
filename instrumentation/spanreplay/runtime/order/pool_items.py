"""Items of process pools, as their workers run them: each in a lane of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.lanes import Lane, inside_lane
from spanreplay.runtime.processes import RemoteCrossing
from spanreplay.runtime.run import active_run

STAFF: Final = "_spanreplay_staff"
"""Attribute of the queue from which a pool's workers take items: the pool's `Staff`."""

JOIN_TOKEN: Final = "_spanreplay_ticket"  # noqa: S105 -- the name of an attribute
"""Attribute of a process that this run starts: its join token."""


class Staff:
    """The workers of one pool."""

    def __init__(self, lane: str) -> None:
        self.lane = lane
        self._count = 0

    def hire(self) -> tuple[str, int]:
        """The lane of one more worker, and its number in the pool."""
        number, self._count = self._count, self._count + 1
        return f"{self.lane}/worker#{number + 1}", number


class Here:
    """The state of this process as a worker."""

    number = -1
    is_of_pool = False
    """Whether its pool is a `multiprocessing.Pool`, whose workers are ended by exceptions outside `Exception`."""
    lane_done = ""
    """The lane whose result it sends back next."""

    def take_lane(self) -> str:
        """The lane whose result is sent back now; "" if none is."""
        lane, self.lane_done = self.lane_done, ""
        return lane


here: Final = Here()


@dataclass(frozen=True)
class Missed:
    """The result of a `multiprocessing.Pool` item if one of its calls has no answer in a replay."""

    message: str


@dataclass(frozen=True)
class Work:
    """A job of a pool's worker: a function, and the lane that it runs in."""

    function: Any
    lane: str
    owner: int

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function in its lane."""
        run = active_run()
        if run is None:
            return self.function(*args, **kwargs)
        here.lane_done = self.lane
        run.order.start_item()
        parent = RemoteCrossing(self.owner, run.root_lane) if self.owner >= 0 else None
        lane = Lane(self.lane, parent)
        if here.number >= 0:
            guard.guarded("the worker of an item", run.lock_order.workers.begun_in_process, lane, here.number)
        if run.process_group is None:
            return self.function(*args, **kwargs)
        run.process_group.lanes_here.append(self.lane)
        run.process_group.at_work = self.lane
        try:
            with inside_lane(lane):
                return self.function(*args, **kwargs)
        except ReplayMiss as miss:
            if not here.is_of_pool:
                raise
            return Missed(str(miss))
        finally:
            run.process_group.at_work = ""
