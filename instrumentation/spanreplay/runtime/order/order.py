"""The order of a replay, as the calls and waits of a run ask for it; `replayer/schedule` has it.

A run that is recorded has none: nobody waits there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from spanreplay.model.call import CallRecord

if TYPE_CHECKING:
    import asyncio

    from spanreplay.runtime.order.run_order import Deadline
    from spanreplay.runtime.processes import ProcessGroup


class Steps(Protocol):
    """Where completions come among the callbacks that their event loops run."""

    @property
    def following(self) -> Mapping[int, tuple[int, int]]:
        """Clock of a completion → one before it on its loop, and how many callbacks came between."""

    @property
    def pauses(self) -> Collection[int]:
        """Clocks of callbacks before which completions of other threads came."""

    @property
    def at_once(self) -> Collection[int]:
        """Clocks of calls of coroutines that completed synchronously."""

    @property
    def behind(self) -> Mapping[int, Any]:
        """Clock of a completion → those that are counted from it."""


class LoopClock(Protocol):
    """The clock of one event loop that a replay has taken over."""

    def since(self, crossing: Any) -> float:
        """Seconds on the loop's clock since a call was first seen here."""

    async def wait_turn(self, clock: int, seconds: float) -> None:
        """Suspend until the recorded duration has passed on the loop's clock and it is this completion's turn."""

    async def settle(self, clock: int) -> None:
        """Wait, in a task that was cancelled, until its call ends as it did: its body may have gone on."""

    def make_wake(self, clock: int) -> asyncio.Future[None]:
        """A future that the program has to cancel; who waits for it goes on when it did."""

    def note(self, clock: int) -> None:
        """A completion has gone out now."""

    def keep_unfired(self, handle: asyncio.TimerHandle) -> None:
        """A timer that fires only where nothing else can happen any more."""

    def set_deadline(self, name: str, deadline: Deadline) -> Any:
        """Set a deadline, which has passed if it had when recorded, and else has not."""

    def make_timer(self, name: str, when: float, callback: Any, args: list[Any], context: Any) -> Any:
        """A timer that fires when it did; None if the recording says nothing about timers."""

    def hand_over(self, clock: int, callback: Any, args: list[Any], context: Any) -> asyncio.Handle:
        """Have the loop call something between the same two steps again; thread-safe."""


class ThreadCensus(Protocol):
    """The threads of a replay that work for the agent."""

    told_at: float
    """When the last thread was told to go on."""

    @property
    def working(self) -> int:
        """Those at work, the calling thread included."""

    @property
    def size(self) -> int:
        """Those that count, whether they are at work or wait."""

    @property
    def idle(self) -> set[int]:
        """Native ids of the threads that wait, and of those that run a loop which has nothing to do."""

    @property
    def is_any_waiting(self) -> bool:
        """Whether somebody waits for its turn."""

    def started(self) -> None:
        """One more thread (or event loop, or call of a pool) is at work."""

    def ended(self) -> None:
        """One less; waits are looked at again."""

    def join(self) -> None:
        """The calling thread counts from now on, if it can."""

    def sleeping(self) -> AbstractContextManager[None]:
        """A block in which the calling thread sleeps for a moment."""

    def polling(self) -> AbstractContextManager[None]:
        """A block in which the calling thread does nothing but look for what comes; it counts as before."""

    def waiting(self) -> AbstractContextManager[None]:
        """A block in which the calling thread waits for its turn; the condition is held around it."""

    def waiting_elsewhere(self) -> AbstractContextManager[Callable[[], None]]:
        """A block in which the calling thread waits for something else than its turn; the condition is not held."""


class Greenlets(Protocol):
    """The greenlets of a replay's threads; `hub` is that of the running one."""

    def of(self, hub: Any) -> Any:
        """What waits in a hub of the calling thread."""

    def wait_turn(self, hub: Any, clock: int) -> None:
        """Give way until it is the turn of a completion."""

    def wait_for_throw(self, hub: Any) -> None:
        """Give way until something is thrown into the running greenlet; return where nothing is."""


class Order(Protocol):
    """Says when a result of the recording goes out. Thread-safe."""

    stalled: str | None
    """Why no thread waits any longer, once the program has turned out to be stuck."""
    on_stall: Callable[[], BaseException] | None
    """Notes that the program waits for ever, and gives the error to raise there."""
    is_live: bool
    """Whether the replay has gone on past the end of the recording: time is real from there on."""

    def complete(self, *clocks: int) -> None:
        """These completions have gone out; whoever waits for them goes on."""

    def cover(self, calls: Iterable[CallRecord]) -> None:
        """These calls lie inside one that was served; other processes have to be told."""

    def open(self) -> None:
        """End all ordering: the replay has stopped matching the recording."""

    def go_live(self) -> None:
        """End all ordering, and virtual time with it: what happens from now on was not recorded."""

    def is_turn(self, clock: int) -> bool:
        """Whether everything before this completion has gone out."""

    def is_over(self, clock: int) -> bool:
        """Whether this completion has gone out, or never will by itself."""

    def comes_from_elsewhere(self, thread: str) -> bool:
        """Whether another thread (or process) than this one has to bring what comes next."""

    @property
    def is_open(self) -> bool:
        """Whether nothing is ordered any more."""

    def is_joint(self, first: int, clock: int) -> bool:
        """Whether a completion came in the same turn of the event loop as an earlier one."""

    def skip_before(self, clock: int) -> None:
        """Give up waiting for what should have come before this completion."""

    def share(self, shared: ProcessGroup) -> None:
        """Walk through the completions together with the other processes of the run, from now on."""

    def join(self, shared: ProcessGroup, *, is_worker: bool) -> None:
        """Start anew in a process that was just started."""

    def wait_turn(self, clock: int, others_s: float = ...) -> None:
        """Block the calling thread until it is this completion's turn, or nothing else moves any more."""

    @property
    def head(self) -> tuple[int, int]:
        """How many completions have gone out in order, and the call that the next one belongs to, or -1."""

    def is_quiet(self, clock: int) -> bool:
        """Whether it is this completion's turn, and no thread that is at work could still bring something before it."""

    def wait_long(self, wait: Callable[[float], bool]) -> None:
        """Wait for what has no limit; `wait` takes seconds and says whether it has happened."""

    def wait_lane(self, lane: str) -> None:
        """Block until it is the turn of a lane to end; at once in a thread that runs an event loop."""

    def begin(self, lane: str, future: Any, begin: Callable[[], bool]) -> bool:
        """Begin a pool's future; one that was cancelled before it began blocks until it is."""

    def shut(self, threads: Iterable[threading.Thread]) -> None:
        """These threads of a pool take no more work: what they have taken too early is cancelled."""

    def wait_until(self, is_free: Callable[[], bool], *, may_be_long: bool = False) -> bool:
        """Block the calling thread until `is_free`; False if nothing else moves any more, or ordering has ended."""

    def move(self, step: Callable[[], None]) -> None:
        """Do what others may wait for in `wait_until`."""

    @property
    def is_thread_awaited(self) -> bool:
        """Whether other threads are at work, or have done work that the loop has not been given yet."""

    @property
    def is_turn_taken(self) -> bool:
        """Whether a thread has its turn, and goes on as soon as others have reacted to what came before."""

    def waits_for_process(self, waited_s: float) -> bool:
        """Whether another process has still to come or to answer, and was waited for that long but not for too long."""

    def deliver(self) -> None:
        """A thread's work has ended, its result is on its way to a loop; call `delivered` there."""

    def delivered(self) -> None:
        """The loop has got it, or nobody waits for it any more."""

    @property
    def working_threads(self) -> int:
        """Threads that are at work and not waiting here, the calling one included."""

    def add_listener(self, wake: Callable[[], None]) -> None:
        """Call `wake` (thread-safe) whenever something has gone out."""

    def remove_listener(self, wake: Callable[[], None]) -> None:
        """Stop calling `wake`."""

    @property
    def lane_ends(self) -> Mapping[str, int]:
        """Lane → the clock of its end."""

    @property
    def timers(self) -> Mapping[str, int] | None:
        """Name → clock of every timer that fired; None if the recording does not say."""

    @property
    def handed_over(self) -> Collection[int]:
        """Clocks of callbacks that other threads gave to an event loop."""

    @property
    def waits(self) -> Mapping[str, Any]:
        """Lane → what its waits ended with."""

    @property
    def cancelled(self) -> Collection[str]:
        """Lanes of a pool's futures that were cancelled before they began."""

    @property
    def steps(self) -> Steps:
        """Where completions come among the callbacks of their loops."""

    @property
    def census(self) -> ThreadCensus:
        """The threads that are counted."""

    @property
    def greenlets(self) -> Greenlets:
        """The greenlets that wait for their turn."""

    @property
    def skipped(self) -> list[int]:
        """Clocks of completions that were waited for in vain."""
