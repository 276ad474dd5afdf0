"""Where threads and lanes of a run begin, wait and end: what a seam asks, the same in a recording and in a replay.

A recording notes each end (`noted_order.py`) and never waits; a replay waits until it is the turn of that end
(`replayer/schedule/kept_order.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from spanreplay.runtime.lanes import Lane
from spanreplay.runtime.order.wait_ends import Timed


class RunOrder(Protocol):
    """Notes where a thread goes on, or lets it go on there again. Thread-safe."""

    # ── lanes ───────────────────────────────────────────────────────────────────────────────────────
    def begin(self, name: str) -> None:
        """The agent sets a timer or starts a thread on an event loop."""

    def begin_future(self, lane: str, future: Any, begin: Callable[[], bool]) -> bool:
        """Begin the future of a thread pool: what `begin` returns."""

    def wait_lane(self, lane: str) -> None:
        """A lane of this process is about to end."""

    def release_lane(self, lane: str) -> None:
        """A lane has ended, and others may have seen it."""

    # ── waits of threads ────────────────────────────────────────────────────────────────────────────
    def wait_futures(self, wrapped: Any, name: str, futures: Sequence[Any], limits: tuple[Any, Any]) -> Any:
        """The result of `concurrent.futures.wait` for futures of known lanes; `limits` are its timeout and its end."""

    def take_completed(self, wrapped: Any, name: str, fs: Any, timeout: float) -> Iterator[Any]:
        """The futures that `concurrent.futures.as_completed` yields in time."""

    def cancel(self, cancel: Callable[[], bool], name: str, future: Any) -> bool:
        """Cancel a pool's future; False if it has begun."""

    def shut_down(self, pool: Any) -> None:
        """A thread pool is about to cancel the jobs that wait in it."""

    def wait_limited(self, timed: Timed, name: str, instance: Any, call: tuple[Any, Any, Any]) -> Any:
        """The result of a wait with a timeout; `call` is the real function and its arguments."""

    def sleep(self, wrapped: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Run `time.sleep` in a thread of several."""

    def attempt(self, lock: Any, place: str, lane: Lane, blocking: bool, timeout: float) -> bool:
        """Try to take the lock of a place, and note it in the handovers if that succeeds."""

    def meet(self, name: str, meet: Callable[[float | None], bool], limit: float | None) -> bool:
        """Take what processes share, or look for what one of them sends; `meet` does it within so many seconds."""

    def await_meeting(self, name: str) -> None:
        """Wait until it is the turn of what `meet` will do under this name."""

    def wait_for_any(
        self, wait: Callable[[list[Any], float | None], list[Any]], name: str, objects: list[Any], limit: float | None
    ) -> list[Any]:
        """Those of some pipes and processes that `wait` finds ready within so many seconds."""

    def go_on(self, name: str) -> None:
        """A thread goes on with an answer for which several may have waited."""
