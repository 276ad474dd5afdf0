"""Where threads and lanes of a run begin, wait and end: the interface of recordings and replays for seams.

A recording notes each end (`noted_order.py`) and never waits; a replay waits until it is the turn of that end
(`replayer/schedule/kept_order.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from spanreplay.runtime.lanes import Lane
from spanreplay.runtime.order.wait_ends import Timed

if TYPE_CHECKING:
    from spanreplay.runtime.processes import ProcessGroup


class Deadline(Protocol):
    """A deadline of an event loop library, which may already have passed when it is set."""

    moment: float
    """When it passes, on the loop's clock."""

    def set(self) -> Any:
        """Have the library set the deadline; return the library's result."""

    def set_at(self, moment: float) -> Any:
        """Set the deadline at another moment; afterwards it reports its own moment again."""

    @property
    def has_passed(self) -> bool:
        """Whether it had passed when it was set."""


class RunOrder(Protocol):
    """Notes where a thread goes on, or makes it go on at the recorded place. Thread-safe."""

    keeps_turns: bool
    """Whether threads wait until it is their turn."""

    def share(self, shared: ProcessGroup) -> None:
        """The run is about to start another process."""

    def for_manifest(self) -> dict[str, Any]:
        """Members for the manifest."""

    # ── lanes ───────────────────────────────────────────────────────────────────────────────────────
    def begin(self, name: str) -> None:
        """The agent sets a timer or starts a thread on an event loop."""

    def begin_future(self, lane: str, future: Any, begin: Callable[[], bool]) -> bool:
        """Begin the future of a thread pool; return the result of `begin`."""

    def wait_lane(self, lane: str) -> None:
        """A lane of this process is about to end."""

    def release_lane(self, lane: str) -> None:
        """A lane has ended, and others may have seen it."""

    # ── event loops ─────────────────────────────────────────────────────────────────────────────────
    def take_over(self, loop: Any) -> bool:
        """A `trio.run` is about to begin; return whether its time is controlled here."""

    def set_timer(self, name: str, loop: Any, call: tuple[Any, Any, Any], *, may_be_early: bool) -> Any:
        """Set a timer and return its handle; `call` is the loop's own function and its arguments.

        `may_be_early`: the loop counts whole milliseconds.
        """

    def set_deadline(self, name: str, deadline: Deadline) -> Any:
        """Set a deadline, which may have passed by now; return the library's result."""

    def pass_deadline(self, name: str) -> None:
        """A deadline passes because the loop's clock has reached it."""

    def hand_over(self, name: str, loop: Any, call: tuple[Any, Any, Any]) -> Any:
        """Have a loop run a callback for another thread and return the handle; `call` as for a timer."""

    def ask_loop(self, ask: Callable[[Any], Any], function: Any, *, is_async: bool) -> Any:
        """Return `ask(function)`: a thread has a loop do something, and waits for it."""

    # ── threads that event loops' libraries use again ───────────────────────────────────────────────
    def lend(self, start: Callable[..., None], cache: Any, job: tuple[Any, ...]) -> None:
        """Give a call to a thread of trio's cache; `start` is trio's own way."""

    def bind(self, thread: Any) -> None:
        """A thread is started for the call that is being placed."""

    def keep_idle(self, module: Any) -> None:
        """The running loop is about to look for an idle thread; `module` is anyio's backend."""

    # ── waits of threads ────────────────────────────────────────────────────────────────────────────
    def wait_futures(self, wrapped: Any, name: str, futures: Sequence[Any], limits: tuple[Any, Any]) -> Any:
        """Run `concurrent.futures.wait` for futures of known lanes; `limits` are its `timeout` and `return_when`."""

    def take_completed(self, wrapped: Any, name: str, fs: Any, timeout: float) -> Iterator[Any]:
        """The futures that `concurrent.futures.as_completed` yields in time."""

    def cancel(self, cancel: Callable[[], bool], name: str, future: Any) -> bool:
        """Cancel a pool's future; return False if it has begun."""

    def shut_down(self, pool: Any) -> None:
        """A thread pool is about to cancel its waiting jobs."""

    def wait_limited(self, timed: Timed, name: str, instance: Any, call: tuple[Any, Any, Any]) -> Any:
        """Return the result of a wait with a timeout; `call` is the real function and its arguments."""

    def sleep(self, wrapped: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Run `time.sleep` in a thread of several."""

    def attempt(self, lock: Any, shared: str, lane: Lane, blocking: bool, timeout: float) -> bool:
        """Try to acquire the lock of a shared, and note it in the lock acquisition order on success."""

    def meet(self, name: str, meet: Callable[[float | None], bool], limit: float | None) -> bool:
        """Take an object that processes share, or poll for data from one; `meet` takes a limit in seconds."""

    def give_way(self, name: str, mutex: Any) -> None:
        """Let threads that need a lock held by this thread go before the `meet` of this name."""

    @property
    def has_meetings(self) -> bool:
        """Whether meetings of processes are part of the order."""

    def wait_elsewhere(self, wait: Callable[[], Any], look: Callable[[float], bool] | None = None) -> Any:
        """Return the result of `wait`, in which the thread waits for another process.

        `look` takes seconds and returns whether the awaited event has come; None if the wait has its own limit.
        """

    def starting(self, number: int, process: Any) -> AbstractContextManager[None]:
        """A block in which the process with the join token of this number starts."""

    def see_end(self, number: int) -> None:
        """The process with the join token of this number has ended."""

    def count_handed(self, jobs: int) -> None:
        """Jobs are handed to a pool of processes; negative: their results have come back."""

    def start_item(self) -> None:
        """A worker process of a pool begins an item."""

    @property
    def report_s_max(self) -> float:
        """How long a pool that kills its workers waits, in seconds, for the reports of their work."""

    @property
    def keeps_reported(self) -> bool:
        """Whether a worker continues in the run after its report, until its pool kills it."""

    def await_seen(self, is_so: Callable[[], bool]) -> None:
        """The agent is about to be told that a future or a thread is over."""

    def wait_for_any(
        self, wait: Callable[[list[Any], float | None], list[Any]], name: str, objects: list[Any], limit: float | None
    ) -> list[Any]:
        """The pipes and processes that `wait` finds ready within the limit in seconds."""

    def go_on(self, name: str) -> None:
        """A thread goes on with an answer that several threads may have waited for."""

    # ── signals ─────────────────────────────────────────────────────────────────────────────────────
    def receive(self, lane: Lane, number: int, find_place: Callable[[], str]) -> None:
        """A signal has reached a handler of the program, in this lane; `find_place` names the place."""

    def expect_signals(self) -> None:
        """The program has set a handler."""

    def pause(self) -> bool:
        """Wait for the signal that ended a `signal.pause`, and return True; False if the system has to wait."""
