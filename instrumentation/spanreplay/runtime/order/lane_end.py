"""The end of a lane's work, which others can observe: a joined thread, a pool's future that is done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from spanreplay.model import guard
from spanreplay.runtime.lanes import HANDED_OVER
from spanreplay.runtime.order.noted_order import ENDED
from spanreplay.runtime.order.wait_ends import CANCELLED

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

LANE_END: Final = "_spanreplay_lane"
"""Attribute of a pool's future, and of a thread that is about to hand over a result."""
THREAD_LANE: Final = "_spanreplay_thread_lane"
"""Attribute of a thread that the agent has started: the path of its lane."""


Cancelling = Callable[["Run", str, Any, Callable[[], bool]], bool]


def _cancel(run: Run, name: str, future: Any, cancel: Callable[[], bool]) -> bool:
    return cancel()


class LaneEnd:
    """The end of a lane's work: `wait` for its turn, `note` it, and `release` the completions after it."""

    cancelling: ClassVar[Cancelling] = staticmethod(_cancel)
    """Cancels a future where waits of threads are recorded; their seam sets it."""

    def __init__(self, run: Run, lane: str, *, is_remote: bool = False, is_inside: bool = False) -> None:
        self.run = run
        self.lane = lane
        self.is_inside = is_inside
        """Whether the lane lies inside a call."""
        self._is_remote = is_remote
        self._cancels = 0

    def begin(self, future: Any, begin: Callable[[], bool]) -> bool:
        """Begin a pool's future when the run's order allows it; futures of process pools begin immediately."""
        return begin() if self._is_remote else self.run.order.begin_future(self.lane, future, begin)

    def cancel(self, future: Any, cancel: Callable[[], bool]) -> bool:
        """Cancel a future. Whether it had already begun depends on timing."""
        self._cancels += 1
        return type(self).cancelling(self.run, f"{self.lane}{CANCELLED}{self._cancels}|", future, cancel)

    def end_thread(self) -> None:
        """End the calling thread's lane, and with it the agent's work in the thread."""
        self.wait()
        self.note()
        self.release()
        vars(threading.current_thread())[ENDED] = True

    def wait(self) -> None:
        """In a replay, block until it is this end's turn. Work of another process has waited for its turn there."""
        if not self._is_remote:
            self.run.order.wait_lane(self.lane)

    def note(self) -> None:
        """Note the end with a value of the run's Lamport clock."""
        guard.guarded("the end of a lane", self.run.note_lane_end, self.lane, self._is_remote)

    def release(self) -> None:
        """In a replay, release whatever waits for this end."""
        self.run.order.release_lane(self.lane)


class HandedEnd(LaneEnd):
    """The end of a call whose thread is about to hand the result to an event loop."""

    def __init__(self, run: Run, lane: str, leave: Callable[[], None], *, is_inside: bool) -> None:
        super().__init__(run, lane, is_inside=is_inside)
        self.leave = leave
        """To be called after the loop has been given the result."""

    @property
    def name(self) -> str:
        """The name of the loop's callback that takes the result."""
        return f"{self.lane}{HANDED_OVER}result"
