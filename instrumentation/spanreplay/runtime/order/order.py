"""The order of a replay, as a run's calls and waits use it; `replayer/schedule` implements it.

A run that is being recorded has none: nobody waits there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

from spanreplay.model.call import CallRecord

if TYPE_CHECKING:
    import asyncio

    from spanreplay.runtime.order.run_order import Deadline
    from spanreplay.runtime.processes import ProcessGroup

_LATER_FACTOR: Final = 1.1
_LATER_S: Final = 0.1


class Steps(Protocol):
    """Where completions come among the callbacks that their event loops run."""

    @property
    def following(self) -> Mapping[int, tuple[int, int]]:
        """Clock of a completion → an earlier one on its loop, and how many callbacks ran in between."""

    @property
    def pauses(self) -> Collection[int]:
        """Clocks of callbacks before which completions of other threads came."""

    @property
    def at_once(self) -> Collection[int]:
        """Clocks of coroutine calls that completed synchronously."""

    @property
    def behind(self) -> Mapping[int, Any]:
        """Clock of a completion → those that are counted from it."""


def is_later(then_s: float, now_s: float) -> bool:
    """Whether a time is later than another one by more than a busy machine explains."""
    return now_s > then_s * _LATER_FACTOR + _LATER_S


class LoopClock(Protocol):
    """The clock of one event loop that a replay has taken over."""

    def since(self, crossing: Any) -> float:
        """Seconds on the loop's clock since a call was first seen here."""

    async def wait_turn(self, clock: int, seconds: float) -> None:
        """Suspend until the recorded duration has passed on the loop's clock and it is this completion's turn."""

    async def settle(self, clock: int) -> None:
        """Wait, in a cancelled task, until its call ends as recorded: its body may have gone on meanwhile."""

    def make_wake(self, clock: int) -> asyncio.Future[None]:
        """A future that the program has to cancel; whoever waits for it goes on when the program does."""

    def note(self, clock: int) -> None:
        """Note that a completion has gone out now."""

    def keep_unfired(self, handle: asyncio.TimerHandle) -> None:
        """Keep a timer that fires only when nothing else can happen any more."""

    def set_deadline(self, name: str, deadline: Deadline) -> Any:
        """Set a deadline that has passed if, and only if, it had passed when recorded."""

    def make_timer(self, name: str, when: float, callback: Any, args: list[Any], context: Any) -> Any:
        """A timer that fires where it fired when recorded; None if the recording says nothing about timers."""

    def hand_over(self, clock: int, callback: Any, args: list[Any], context: Any) -> asyncio.Handle:
        """Have the loop run a callback between the same two steps as when recorded; thread-safe."""


class ThreadCensus(Protocol):
    """The threads of a replay that work for the agent."""

    told_at: float
    """When the last thread was told to go on."""

    @property
    def working(self) -> int:
        """How many threads are working, including the calling thread."""

    @property
    def size(self) -> int:
        """How many threads are counted, whether they are working or waiting."""

    @property
    def idle(self) -> set[int]:
        """Native ids of the threads that wait or run an idle event loop."""

    @property
    def is_any_waiting(self) -> bool:
        """Whether any thread waits for its turn."""

    def started(self) -> None:
        """One more thread (or event loop, or pool job) is working."""

    def ended(self) -> None:
        """One fewer is working; waits are checked again."""

    def join(self) -> None:
        """Count the calling thread from now on, if possible."""

    def sleeping(self) -> AbstractContextManager[None]:
        """A block in which the calling thread sleeps for a moment."""

    def polling(self) -> AbstractContextManager[None]:
        """A block in which the calling thread only polls; it counts as before."""

    def waiting(self) -> AbstractContextManager[None]:
        """A block in which the calling thread waits for its turn; the condition is held around it."""

    def waiting_elsewhere(self) -> AbstractContextManager[Callable[[], None]]:
        """A block in which the calling thread waits for something other than its turn; the condition is not held."""


class Greenlets(Protocol):
    """The greenlets of a replay's threads; `hub` is the hub of the running greenlet."""

    def of(self, hub: Any) -> Any:
        """The greenlets that wait in a hub of the calling thread."""

    def wait_turn(self, hub: Any, clock: int) -> None:
        """Switch to the hub until it is the turn of a completion."""

    def wait_for_throw(self, hub: Any) -> None:
        """Switch to the hub until an exception is thrown into the running greenlet; return if none is."""


class Sent(Protocol):
    """The recorded signals that a replay still has to send to its main thread."""

    def look(self) -> None:
        """Send the next signal, or have it sent at its place, if it is its turn."""

    def send_in(self, recorded: CallRecord, clock: int) -> None:
        """Send the signals that came during a call, before its completion at this clock."""

    def begin(self, recorded: CallRecord | None) -> None:
        """A call has begun that is answered by this one."""

    def send_late(self) -> None:
        """Send a signal that is due before the next call of the main thread."""

    def send_in_pause(self) -> bool:
        """Send the signal that ended a pause; False if none did."""

    def enter(self, clock: LoopClock) -> None:
        """An event loop begins to run in the calling thread."""

    def leave(self, clock: LoopClock) -> None:
        """An event loop has stopped."""

    def take_sent(self) -> bool:
        """Called where an event loop looks for events: whether it has sent a signal since. Raises: its exception."""

    def arrive(self, number: int) -> None:
        """A signal has reached its handler."""


class Order(Protocol):
    """Decides when a recorded result goes out. Thread-safe."""

    stalled: str | None
    """Why no thread waits any longer, if the program turned out to be stuck."""
    on_stall: Callable[[], BaseException] | None

    def note_late(self, clock: int, why: str) -> None:
        """Note that a call ends where it did when recorded, though by the program's limits it would not now."""

    """Notes that the program waits forever, and returns the error to raise there."""
    lasted_s: float
    """How long the recorded run took."""
    is_live: bool
    """Whether the replay has gone past the end of the recording: time is real from there on."""

    def complete(self, *clocks: int) -> None:
        """Note that these completions have gone out; whoever waits for them goes on."""

    def cover(self, calls: Iterable[CallRecord]) -> None:
        """Note that these calls lie inside one that was served; other processes have to be told."""

    def open(self) -> None:
        """End all ordering: the replay has stopped matching the recording."""

    def go_live(self) -> None:
        """End all ordering and virtual time: nothing that happens from now on was recorded."""

    def is_covered(self, seq: int) -> bool:
        """Whether a recorded call lies inside a served call."""

    def is_turn(self, clock: int) -> bool:
        """Whether everything before this completion has gone out."""

    def is_over(self, clock: int) -> bool:
        """Whether this completion has gone out, or never will by itself."""

    def comes_from_elsewhere(self, thread: str) -> bool:
        """Whether the next completion must come from a thread other than this one, or from another process."""

    @property
    def is_open(self) -> bool:
        """Whether ordering has ended."""

    def is_joint(self, first: int, clock: int) -> bool:
        """Whether a completion came in the same loop iteration as an earlier one."""

    def skip_before(self, clock: int) -> None:
        """Stop waiting for the completions that should have come before this one."""

    def share(self, shared: ProcessGroup) -> None:
        """From now on, go through the completions together with the other processes of the run."""

    def join(self, shared: ProcessGroup, *, is_worker: bool) -> None:
        """Start afresh in a process that was just started."""

    def wait_turn(self, clock: int, others_s: float = ...) -> None:
        """Block the calling thread until it is this completion's turn, or nothing else moves any more."""

    @property
    def head(self) -> tuple[int, int]:
        """How many completions have gone out in order, and the call that the next one belongs to, or -1."""

    def is_quiet(self, clock: int) -> bool:
        """Whether it is this completion's turn and no working thread could still complete something before it."""

    def wait_long(self, wait: Callable[[float], bool]) -> None:
        """Wait for something without a time limit; `wait` takes seconds and returns whether it has happened."""

    def wait_lane(self, lane: str) -> None:
        """Block until it is a lane's turn to end; return immediately in a thread that runs an event loop."""

    def begin(self, lane: str, future: Any, begin: Callable[[], bool]) -> bool:
        """Begin a pool's future. One that was cancelled before it began blocks until it is cancelled again."""

    def shut(self, threads: Iterable[threading.Thread]) -> None:
        """Note that these pool threads take no more work: jobs that they have taken too early are cancelled."""

    def wait_until(self, is_free: Callable[[], bool], *, may_be_long: bool = False) -> bool:
        """Block the calling thread until `is_free`; False if nothing else moves any more or ordering has ended."""

    def move(self, step: Callable[[], None]) -> None:
        """Run a step that others may wait for in `wait_until`."""

    @property
    def is_thread_awaited(self) -> bool:
        """Whether other threads are working, or have results that the loop has not been given yet."""

    @property
    def shows_reactions(self) -> bool:
        """Whether a thread that reacts uses the processor: none sleeps, and no other process shares the order."""

    @property
    def is_turn_taken(self) -> bool:
        """Whether a thread has its turn, and goes on as soon as others have reacted to the completions before it."""

    def waits_for_process(self, waited_s: float) -> bool:
        """Whether another process has yet to start or answer, and the wait so far is not too long yet."""

    def deliver(self) -> None:
        """A thread's work has ended and its result is on its way to a loop; call `delivered` there."""

    def delivered(self) -> None:
        """The loop has received the result, or nobody waits for it any more."""

    @property
    def working_threads(self) -> int:
        """How many threads are working and not waiting here, including the calling thread."""

    def add_listener(self, wake: Callable[[], None]) -> None:
        """Call `wake` (thread-safe) whenever a completion has gone out."""

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
        """Lane → the ends of its waits."""

    @property
    def cancelled(self) -> Collection[str]:
        """Lanes of a pool's futures that were cancelled before they began."""

    @property
    def steps(self) -> Steps:
        """Where completions come among the callbacks of their loops."""

    @property
    def census(self) -> ThreadCensus:
        """The thread census."""

    @property
    def greenlets(self) -> Greenlets:
        """The greenlets that wait for their turn."""

    @property
    def sent(self) -> Sent:
        """The signals that are still to be sent."""

    @property
    def skipped(self) -> list[int]:
        """Clocks of completions that were waited for in vain."""
