"""The end of what was done in a lane, which others see: a thread joined, a pool's future done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from spanreplay import guard
from spanreplay.lanes import HANDED_OVER

if TYPE_CHECKING:
    from spanreplay.run import Run

ENDED: Final = "_spanreplay_ended"
"""Attribute of a thread whose lane has ended: what is left of it is none of the agent's."""
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
        self._cancels = 0

    def begin(self, future: Any, begin: Callable[[], bool]) -> bool:
        """Begin a pool's future; in a replay one that was cancelled waits for that, but for those of processes."""
        if self.run.session is None or self._is_remote:
            return begin()
        return self.run.session.gate.begin(self.lane, future, begin)

    def cancel(self, future: Any, cancel: Callable[[], bool]) -> bool:
        """Cancel a future: whether it had begun is a matter of time."""
        from spanreplay import waits

        self._cancels += 1
        return waits.cancel_noted(self.run, f"{self.lane}{waits.CANCELLED}{self._cancels}|", future, cancel)

    def end_thread(self) -> None:
        """The lane of the calling thread ends, and with it what the agent does there."""
        self.wait()
        self.note()
        self.release()
        vars(threading.current_thread())[ENDED] = True

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


def known_timers(
    timers: Mapping[str, tuple[int, int]], waits: Mapping[str, Sequence[str]], lane_ends: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """The timers without the waits for lanes whose end nobody noted: a replay could not make the same of them."""
    unknown = {name for name, lanes in waits.items() if any(lane not in lane_ends for lane in lanes)}
    return {name: fired for name, fired in timers.items() if name not in unknown}
