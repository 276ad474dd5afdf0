"""The end of what was done in a lane, which others see: a thread joined, a pool's future done."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from spanreplay import guard
from spanreplay.lanes import HANDED_OVER

if TYPE_CHECKING:
    from spanreplay.run import Run

LANE_END: Final = "_spanreplay_lane"
"""Attribute of a pool's future, and of a thread that is about to hand over a result."""


class LaneEnd:
    """The end of what was done in a lane: `wait` for its turn, `note` it, and `release` what comes behind it."""

    def __init__(self, run: Run, lane: str, *, is_remote: bool = False, is_inside: bool = False) -> None:
        self.run = run
        self.lane = lane
        self.is_inside = is_inside
        """Whether the lane lies inside a call."""
        self._is_remote = is_remote

    def wait(self) -> None:
        """In a replay, block until it is its turn; what another process did was waited for there."""
        if self.run.session is not None and not self._is_remote:
            self.run.session.gate.wait_lane(self.lane)

    def note(self) -> None:
        """Take a value of the run's clock."""
        guard.guarded("the end of a lane", self.run.note_lane_end, self.lane, self._is_remote)

    def release(self) -> None:
        """In a replay, let go on what waits for this end."""
        if self.run.session is not None:
            gate = self.run.session.gate
            gate.complete(gate.lane_ends.get(self.lane, -1))


class HandedEnd(LaneEnd):
    """The end of a call whose thread is about to hand the result to an event loop."""

    def __init__(self, run: Run, lane: str, leave: Callable[[], None], *, is_inside: bool) -> None:
        super().__init__(run, lane, is_inside=is_inside)
        self.leave = leave
        """To be called once the loop has been given the result."""

    @property
    def name(self) -> str:
        """The name of what the loop does with it."""
        return f"{self.lane}{HANDED_OVER}result"
