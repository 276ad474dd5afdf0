"""Steps of asyncio's event loops, and where between them a completion comes.

A step is one callback that a loop runs for the agent. A completion comes from outside, after however many steps the
loop has made by then. That number decides who is first in a queue, whom a cancellation still reaches and the outcome of
any other race. It is recorded for completions that come while the program still reacts to an earlier one; after the
loop has been idle there is nothing to count from.

The following are not steps: the work of a boundary's own body, the callbacks that carry its traffic, and whatever
brings in events from outside (input and output, timers, other threads), because a replay has none of these, or a
different number of them. Neither is the closing of abandoned asynchronous generators, which loops do when the garbage
collector finds them.

Loops that run in several threads at once may change the same object. If another thread completes something between two
steps of a loop, the second step is noted too, as a pause; a replay does not make that step before its turn.

At a loop's first completion its queue of ready callbacks is replaced by one that counts, and its `select`, which a loop
calls once per iteration, is wrapped; `select` is restored when the run ends.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, Final, Protocol

from spanreplay.model import config, guard
from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.caller.running import RUN
from spanreplay.runtime.lanes import is_of_agent
from spanreplay.runtime.order.callback_proxies import CallbackProxy
from spanreplay.runtime.patches import Patches, require

FINALIZING: Final[ContextVar[bool]] = ContextVar("spanreplay_finalizing", default=False)
"""Whether the running code closes an abandoned asynchronous generator; the garbage collector decides when."""
PACE: Final = ("steps", "at_once", "pauses")
"""Members of a manifest, flat lists, that say where completions come among the steps of its loops."""
_unknown: Final[set[type]] = set()
"""Types of callbacks that are not as expected."""
STATE: Final = "_spanreplay_steps"
"""Attribute of a loop: its step counter."""


class Outer(CallbackProxy):
    """A callback that comes from outside the loop and is not a step."""

    __slots__ = ()

    def __call__(self, *args: Any) -> Any:
        return self._callback(*args)


class Retry(Outer):
    """A callback run in every iteration until something has happened; with only such callbacks a loop is idle."""

    __slots__ = ()


class LoopPosition:
    """The position of one run on one loop."""

    __slots__ = ("before_step", "first", "first_of_turn", "is_pausing", "noted_in", "start", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.first = -1
        """The first completion since the loop was last idle; -1 if there was none."""
        self.start = 0
        """How many steps had been made at `first`."""
        self.first_of_turn = -1
        self.noted_in = -1
        """The iteration of the last completion; `first_of_turn` is the first completion in it."""
        self.before_step: Callable[[LoopPosition], None] | None = None
        """To be called before each step, once several loops run."""
        self.is_pausing = False


class Owner(Protocol):
    """The part of a run that its step book needs."""

    is_entered: bool

    def complete(self) -> tuple[int, int]:
        """Take a value of the run's Lamport clock, and note it in the step book."""


class Director(Protocol):
    """Decides, in a replay, which callback a loop runs next."""

    def take_due(self) -> Any | None:
        """A callback to run before the next step, or None."""


class StepQueue(deque[Any]):
    """A loop's queue of ready callbacks; counts the steps of each run.

    Used by the loop's thread only, except that others append: to iterate, take a list of it, which is atomic.
    """

    def __init__(self, handles: Iterable[Any] = ()) -> None:
        super().__init__(handles)
        self.taken = 0
        """How many callbacks have been run."""
        self.turn = 0
        self.positions: dict[Any, LoopPosition] = {}
        self.director: Director | None = None
        self._from_outside: set[int] = set()

    def popleft(self) -> Any:
        """The next callback."""
        if self.director is not None and self:
            due = self.director.take_due()
            if due is not None:
                self.taken += 1
                return due
        handle = super().popleft()
        self.take(handle, handle._context)
        return handle

    def take(self, handle: Any, context: Any) -> None:
        """Note that this is about to run, in this Context."""
        self.taken += 1
        if self.positions and self.is_step(handle):
            position = self.positions.get(context.get(RUN))
            if position is not None:
                if position.before_step is not None:
                    position.before_step(position)
                position.steps += 1

    def is_step(self, handle: Any) -> bool:
        """Whether a callback is a step; a cancelled one is not run."""
        if handle._cancelled or isinstance(handle._callback, Outer) or not is_of_agent(handle._context):
            return False
        if handle._context.get(FINALIZING):
            return False
        return not self._from_outside or id(handle) not in self._from_outside

    @property
    def is_idle(self) -> bool:
        """Whether nothing but retries is left."""
        return bool(self) and all(type(handle._callback) is Retry for handle in list(self))

    def position_of(self, run: Owner) -> LoopPosition:
        """The position of a run."""
        return self.positions.setdefault(run if run.is_entered else None, LoopPosition())

    def next_turn(self) -> None:
        """Begin an iteration of the loop."""
        self.turn += 1
        if self._from_outside:  # callbacks that were put in front of them have kept some waiting
            self._from_outside = {id(handle) for handle in list(self) if id(handle) in self._from_outside}

    def note_events(self, events: Iterable[Any]) -> None:
        """Note that these files are ready: the callbacks queued for them now are not steps."""
        for key, _ in events:
            if isinstance(key.data, tuple):
                self._from_outside.update(id(handle) for handle in key.data if handle is not None)


class Watched:
    """One loop whose steps are counted; used by the thread that runs the loop."""

    def __init__(self, loop: Any) -> None:
        # Another thread may hold the old queue right now; it wakes up `select` after appending to it
        self._old: deque[Any] = loop._ready
        self.queue = StepQueue()
        loop._ready = self.queue
        self._selector = loop._selector
        self._real_select: Callable[[float | None], Any] | None = None
        self.drain()

    def drain(self) -> None:
        """Move callbacks that are still being put into the loop's old queue to the new one."""
        while self._old:
            self.queue.append(self._old.popleft())

    def take_select(self) -> None:
        """Observe the iterations of the loop from now on."""
        if self._real_select is None:
            self._real_select = self._selector.select
            self._selector.select = self._select

    def leave(self, run: Owner) -> None:
        """Stop counting for a run; with the last one, restore `select`."""
        self.queue.positions.pop(run if run.is_entered else None, None)
        if self.queue.positions or self._real_select is None:
            return
        if vars(self._selector).get("select") == self._select:
            self._selector.select = self._real_select
            self._real_select = None

    def _select(self, timeout: float | None = None) -> Any:
        queue = self.queue
        if timeout is None or timeout > 0 or queue.is_idle:
            for position in list(queue.positions.values()):
                position.first = -1
                position.first_of_turn = -1
        queue.next_turn()
        events = self._real_select(timeout) if self._real_select is not None else []
        if self._old:
            self.drain()
        if events:
            queue.note_events(events)
        return events


def check_handles(patches: Patches) -> None:
    """Check that asyncio's loops and their callbacks are as expected; otherwise no loop is counted.

    Raises: AttributeError.
    """
    import asyncio.base_events

    _unknown.add(asyncio.Handle)
    with contextlib.closing(asyncio.base_events.BaseEventLoop()) as loop:
        require(loop, "_ready")
        require(asyncio.Handle(check_handles, (), loop), "_callback", "_cancelled", "_context")
    _unknown.clear()


def can_count(loop: Any) -> bool:
    """Whether the steps of a loop can be counted: asyncio's own loops let us see their ready queue.

    Other loops can be counted if a seam sees the callbacks that they are given, as uvloop's does.
    """
    is_asyncios = isinstance(getattr(loop, "_ready", None), deque) and hasattr(loop, "_selector") and not _unknown
    return is_asyncios or getattr(loop, STATE, None) is not None


def watch(loop: Any) -> Watched | None:
    """Count the steps of a loop; None for one whose steps can't be counted."""
    watched: Watched | None = getattr(loop, STATE, None)
    if watched is None and can_count(loop):
        watched = Watched(loop)
        with contextlib.suppress(AttributeError):
            setattr(loop, STATE, watched)
    return watched


class StepBook:
    """How many steps of a loop lie between the completions of one run. Thread-safe."""

    def __init__(self, run: Owner) -> None:
        self._run = run
        self._following: list[int] = []
        self._at_once: list[int] = []
        self._pauses: list[int] = []
        self.last_thread = 0
        """The identifier of the thread that completed last."""
        self._loops: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._lock = make_lock()
        self._is_over = False

    def now(self, loop: Any) -> int:
        """A number for the callback that a loop runs now; -1 for a loop that can't be counted."""
        watched = self._watch(loop)
        return -1 if watched is None else watched.queue.taken

    def made(self, loop: Any) -> int:
        """How many steps a loop has made; -1 for a loop that can't be counted."""
        watched = self._watch(loop)
        return -1 if watched is None else watched.queue.position_of(self._run).steps

    @property
    def firsts(self) -> list[int]:
        """The completions and beginnings that others are counted from."""
        return self._following[1::3]

    def begin(self, loop: Any, clock_of: Callable[[], int]) -> int:
        """Count from here, on a loop that is new to the run, until the loop is idle; -1 if the loop is not new."""
        if getattr(loop, STATE, None) in self._loops:
            return -1
        watched = self._watch(loop)
        if watched is None:
            return -1
        position = watched.queue.position_of(self._run)
        position.first, position.start = clock_of(), position.steps
        return position.first

    def note(self, loop: Any, clock: int, opened_in: int = -1) -> int | None:
        """The first completion in the same iteration; -1 if it is this one; None if the loop can't be counted.

        `opened_in` is the value of `now` when the coroutine's call began, if it is a coroutine.
        """
        watched = self._watch(loop)
        if watched is None:
            return None
        queue = watched.queue
        position = queue.position_of(self._run)
        if position.is_pausing:
            if len(self._following) < config.STEPS_MAX:
                self._keep(self._pauses, clock)
                self._keep(self._following, clock, position.first, position.steps - position.start)
            return -1
        if opened_in == queue.taken:
            self._keep(self._at_once, clock)
        if position.first < 0:
            position.first, position.start = clock, position.steps
        else:
            self._keep(self._following, clock, position.first, position.steps - position.start)
        if position.first_of_turn < 0 or position.noted_in != queue.turn:
            position.first_of_turn, position.noted_in = clock, queue.turn
            return -1
        return position.first_of_turn

    def _pause(self, position: LoopPosition) -> None:
        """Note the step that a loop is about to make, if another thread has completed something since its last one."""
        if position.first < 0 or self._is_over or self.last_thread == threading.get_ident():
            return
        position.is_pausing = True
        try:
            guard.guarded("noting a step", self._run.complete)
        finally:
            position.is_pausing = False

    def describe(self) -> dict[str, Any]:
        """Members for the manifest: (clock, earlier clock, steps between) flattened; synchronous calls; pauses."""
        members = {"steps": self._following, "at_once": self._at_once, "pauses": self._pauses}
        return {name: list(values) for name, values in members.items() if values}

    def finish(self) -> None:
        """Give every loop its own `select` back."""
        with self._lock:
            self._is_over = True
            loops = list(self._loops)
        for watched in loops:
            watched.leave(self._run)

    def _watch(self, loop: Any) -> Watched | None:
        watched: Watched | None = getattr(loop, STATE, None)
        if watched is not None and watched in self._loops:
            return watched
        with self._lock:
            watched = None if self._is_over else watch(loop)
            if watched is None:
                return None
            watched.take_select()
            watched.queue.position_of(self._run)
            self._loops.add(watched)
            for each in self._loops if len(self._loops) > 1 else ():
                each.queue.position_of(self._run).before_step = self._pause
        return watched

    def _keep(self, where: list[int], *values: int) -> None:
        if len(where) < config.STEPS_MAX:
            with self._lock:
                where.extend(values)


class NoSteps(StepBook):
    """Treats every loop as one whose steps can't be counted."""

    def _watch(self, loop: Any) -> Watched | None:
        return None
