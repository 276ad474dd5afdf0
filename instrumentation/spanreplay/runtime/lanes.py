"""Lanes: logical threads of control, named where concurrency is created, never where it is scheduled.

A child lane is its parent's path plus kind, qualified name and a counter of that name in the parent, for example
`main/t:fetch#3`. Creation order is program order inside the parent lane, so a name does not depend on timing, and work
that a library adds under another name does not shift it.

Hooks: `BaseEventLoop.create_task`, `ThreadPoolExecutor.submit`, `Thread.start`. A context variable carries the lane;
code that runs a task inside a `Context` of its own (`ctx.run`, `partial(ctx.run, f)`) is followed into it.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from spanreplay.model.guard import guarded
from spanreplay.model.ids import monotonic_ns
from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.caller import caller
from spanreplay.runtime.context_variables import reset_variable, set_in_own_context, set_variable
from spanreplay.runtime.order.lane_futures import LaneEnd

LABEL_CHARACTERS_MAX: Final = 80
LABELS_MAX: Final = 1_000
"""How many labels are remembered; a program starts few different functions."""
HANDED_OVER: Final = "|>"
"""In the name of a callback that a thread hands to an event loop, in front of the callable's name."""
_COMPREHENSION: Final = re.compile(r"<(?:list|set|dict)comp>\.")
_counting = make_lock()
"""Guards the counters. No container is made while it is held: a collection's finalizers may count in the same lane."""


class Clock:
    """The Lamport clock of a run."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0


class Lane:
    """One logical thread of control; its counters are guarded by one lock of the module."""

    __slots__ = (
        "_calls", "_children", "_named", "births", "born_ns", "clock", "has_called", "number", "owner", "path", "reads"
    )  # fmt: skip

    def __init__(
        self, path: str, owner: Any = None, number: int = 0, clock: Clock | None = None, births: tuple[int, ...] = ()
    ) -> None:
        self.path, self.number = path, number
        """Its number among the lanes of its label in its parent, from 1; 0 for a lane that is not numbered."""
        self.owner = owner
        """The crossing that this lane was created inside, or None."""
        # Most lanes count nothing, and the garbage collector runs more often for each dictionary
        self._children: dict[str, int] | None = None
        self._calls: dict[str, Iterator[int]] | None = None
        self._named: dict[str, Lane] | None = None
        self.reads: dict[str, int] | None = None
        """How many values of each source are written."""
        self.born_ns = monotonic_ns() if _births.are_noted else 0
        """When it was made, on the monotonic clock, in a replay of a unit; else 0."""
        self.clock = clock
        """The clock of its run; None until it is known."""
        self.births = births
        """When it and the lanes above it were made, on that clock: a number for each of the last parts of its path."""
        self.has_called = False
        """Whether a call was made in it."""

    def child(self, label: str, owner: Any = None) -> Lane:
        """A new lane below this one; the n-th of its label is `label#n`, from 1."""
        made: dict[str, int] = {} if self._children is None else self._children  # see `_counting`
        with _counting:
            counts = self._children = made if self._children is None else self._children
            count = counts[label] = counts.get(label, 0) + 1
        return Lane(f"{self.path}/{label}#{count}", owner, count, self.clock, self.births_below(label))

    def named_child(self, label: str, owner: Any = None) -> Lane:
        """The lane below this one whose label is a framework's own id; the same object each time."""
        made: dict[str, Lane] = {} if self._named is None else self._named
        lane = made.get(label) or Lane(f"{self.path}/{label}", owner, 0, self.clock, self.births_below(label))
        with _counting:
            named = self._named = made if self._named is None else self._named
            return named.setdefault(label, lane)

    def tell_births(self, clock: Clock) -> tuple[int, ...]:
        """Note that a call of the run with this clock is made here; return the births at the first, if any is not 0."""
        if self.has_called:
            return ()
        self.has_called = True
        if self.clock is None:
            self.clock = clock
        return self.births if any(self.births) else ()

    def births_below(self, label: str) -> tuple[int, ...]:
        """The births of a lane that is made below this one now; as many for a label as it has parts."""
        clock = self.clock
        if clock is None:
            return self.births
        return (*self.births, clock.now) if "/" not in label else (*self.births, *[clock.now] * (label.count("/") + 1))

    def next_index(self, boundary: str) -> int:
        """How many calls of this boundary came before in this lane."""
        numbers = None if self._calls is None else self._calls.get(boundary)
        if numbers is None:
            made: dict[str, Iterator[int]] = {} if self._calls is None else self._calls
            first = itertools.count()
            with _counting:
                known = self._calls = made if self._calls is None else self._calls
                numbers = known.setdefault(boundary, first)
        return next(numbers)  # atomic: threads can't interrupt it

    def take_back(self, boundary: str, index: int) -> None:
        """The next call of this boundary has this index: the call that had it doesn't count."""
        if self._calls is not None:
            self._calls[boundary] = itertools.count(index)


class _Births:
    """Whether lanes note when they are made."""

    are_noted = False


_births: Final = _Births()


def note_births() -> None:
    """From now on, each lane notes when it was made."""
    _births.are_noted = True


_lane: contextvars.ContextVar[Lane | None] = contextvars.ContextVar("spanreplay_lane", default=None)
_crossing: contextvars.ContextVar[Any] = contextvars.ContextVar("spanreplay_crossing", default=None)


is_plumbing_here: contextvars.ContextVar[bool] = contextvars.ContextVar("spanreplay_plumbing", default=False)
"""Whether the running code carries the traffic of another boundary."""


def is_of_agent(context: contextvars.Context) -> bool:
    """Whether the code in a Context is the agent's own: neither a boundary's body nor plumbing."""
    if context.get(_crossing) is not None or context.get(is_plumbing_here):
        return False
    lane = context.get(_lane)
    return lane is None or lane.owner is None


def is_inside(lane: Lane) -> bool:
    """Whether a lane that is being created here is part of a boundary: of a call's body or of its traffic."""
    return lane.owner is not None or is_plumbing_here.get()


class inside_call:  # noqa: N801 -- reads as a statement: `with inside_call(crossing):`
    """A block in which a call waits for its outcome; the end of the wait is not a step of the agent."""

    __slots__ = ("_crossing", "_token")

    def __init__(self, crossing: Any) -> None:
        self._crossing = crossing

    def __enter__(self) -> None:
        self._token = set_variable(_crossing, self._crossing)

    def __exit__(self, *exc_info: object) -> None:
        try:
            reset_variable(_crossing, self._token)
        except ValueError:  # left in a Context other than the one entered
            if _crossing.get() is self._crossing:
                set_variable(_crossing, None)


class outside_calls:  # noqa: N801 -- reads as a statement: `with outside_calls(root):`
    """A block that interrupts the running code and is no part of the calls around it: the handler of a signal."""

    __slots__ = ("_lane", "_tokens")

    def __init__(self, root: Lane) -> None:
        crossing = outermost_crossing(root)
        self._lane = None if crossing is None else crossing.lane

    def __enter__(self) -> None:
        self._tokens: list[tuple[contextvars.ContextVar[Any], contextvars.Token[Any] | None]]
        self._tokens = [(is_plumbing_here, set_variable(is_plumbing_here, False))]
        if self._lane is not None:
            self._tokens += [(_crossing, set_variable(_crossing, None)), (_lane, set_variable(_lane, self._lane))]

    def __exit__(self, *exc_info: object) -> None:
        for variable, token in reversed(self._tokens):
            reset_variable(variable, token)


class _Thread(threading.local):
    lane: Lane | None = None
    """The lane in which this thread, or the pool job that it runs, began."""

    # (parent, child): code that enters a copied Context finds the parent's lane there, but means the child's
    forced: tuple[Lane, Lane] | None = None
    submitted: Lane | None = None
    """The lane of the job that is being given to a pool."""


thread_state = _Thread()


def current_lane(root: Lane) -> Lane:
    """The lane of the running code; `root` if none was set."""
    lane = _lane.get() or root
    forced = thread_state.forced
    if forced is not None and lane is forced[0]:
        return forced[1]
    return lane


def submitted_lane() -> Lane | None:
    """The lane of the job that the calling thread is giving to a pool; None afterwards."""
    return thread_state.submitted


def has_lane() -> bool:
    """Whether the calling code is in a lane made for it; False in a library's thread whose start nobody saw."""
    return _lane.get() is not None or thread_state.forced is not None


def current_place(root: Lane) -> tuple[Lane, Any]:
    """The lane and the boundary call that the running code is inside."""
    lane = current_lane(root)
    crossing = _crossing.get()
    return lane, crossing if crossing is not None else lane.owner


def is_in_call() -> bool:
    """Whether the running code may be inside a boundary call; `current_crossing` tells which."""
    lane = _lane.get()
    return _crossing.get() is not None or (lane is not None and lane.owner is not None)


def current_crossing(root: Lane) -> Any:
    """The boundary call that the running code is inside, or None; crosses threads with the lane."""
    crossing = _crossing.get()
    return crossing if crossing is not None else current_lane(root).owner


def outermost_crossing(root: Lane) -> Any:
    """The boundary call around all others that the running code is inside, or None."""
    crossing = current_crossing(root)
    while crossing is not None and getattr(crossing, "parent", None) is not None:
        crossing = crossing.parent
    return crossing


def thread_lane(root: Lane) -> Lane:
    """The lane in which this thread, or the pool job that it runs, began, whatever task runs in it now."""
    return thread_state.lane or root


class _CallLane(Lane):
    """The lane inside a call. Named on first use: most bodies make no calls and start nothing."""

    __slots__ = ()

    def __init__(self, crossing: Any) -> None:  # without a path: `__getattr__` makes it
        self.owner = crossing
        self.number, self.has_called = 0, False
        self._children = self._calls = self._named = self.reads = None

    def __getattr__(self, name: str) -> Any:
        if name == "born_ns":
            return self.owner.lane.born_ns
        if name == "clock":
            return self.owner.lane.clock
        if name not in ("path", "births"):
            raise AttributeError(name)
        label = f"{self.owner.boundary}#{self.owner.index + 1}"[-LABEL_CHARACTERS_MAX:]
        if name == "births":
            self.births = self.owner.lane.births_below(label)
            return self.births
        self.path = f"{self.owner.lane.path}/{label}"
        return self.path


CrossingTokens = tuple[contextvars.Token[Any] | None, contextvars.Token[Lane | None] | None]
"""The tokens that `leave_crossing` undoes."""


def enter_crossing(crossing: Any) -> CrossingTokens:
    """Make `crossing` the current one, in a lane of its own; pass the result to `leave_crossing`.

    A replay that serves the call does not run its body: counters used in the body must not affect later numbers.
    """
    return set_variable(_crossing, crossing), set_variable(_lane, _CallLane(crossing))


def leave_crossing(crossing: Any, tokens: CrossingTokens) -> None:
    """Undo `enter_crossing`; in a Context other than the one entered (generators), as far as it took effect there."""
    try:
        reset_variable(_crossing, tokens[0])
        reset_variable(_lane, tokens[1])
    except ValueError:
        if _crossing.get() is crossing:
            set_variable(_crossing, None)
        lane = _lane.get()
        if type(lane) is _CallLane and lane.owner is crossing:
            set_variable(_lane, crossing.lane)


def enter_lane(lane: Lane) -> None:
    """Move a process that was just started into a lane."""
    set_variable(_lane, lane)
    set_variable(_crossing, lane.owner)
    thread_state.forced = None


def take_place() -> tuple[Lane | None, Any]:
    """The lane and the call in whose place this context works, for `put_place`."""
    return _lane.get(), _crossing.get()


def put_place(place: tuple[Lane | None, Any]) -> None:
    """Let this context work in another place from now on, where no block can enclose the work."""
    set_variable(_lane, place[0])
    set_variable(_crossing, place[1])


class inside_lane:  # noqa: N801 -- reads as a statement: `with inside_lane(lane):`
    """Run a block in a lane."""

    __slots__ = ("_lane", "_token")

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def __enter__(self) -> Lane:
        self._token = set_variable(_lane, self._lane)
        return self._lane

    def __exit__(self, *exc_info: object) -> None:
        try:
            reset_variable(_lane, self._token)
        except ValueError:  # left in a Context other than the one entered
            if _lane.get() is self._lane:
                set_variable(_lane, None)


LAYERS_MAX: Final = 16


def peel(function: Any, args: tuple[Any, ...]) -> tuple[Any, list[contextvars.Context]]:
    """The function itself and the Contexts it will run in, below `partial(ctx.run, f)`, `ctx.run, f` and the like."""
    vector = (function, *args)
    contexts: list[contextvars.Context] = []
    for _ in range(LAYERS_MAX):
        head = vector[0]
        owner = getattr(head, "__self__", None)
        if isinstance(head, functools.partial):
            vector = (head.func, *head.args, *vector[1:])
        elif isinstance(owner, contextvars.Context) and len(vector) > 1:
            contexts.append(owner)
            vector = vector[1:]
        elif len(vector) > 2 and isinstance(getattr(vector[1], "__self__", None), contextvars.Context):
            vector = vector[1:]  # LangGraph's `next_tick, ctx.run, f`
        else:
            break
    return vector[0], contexts


wrapped_work: Final[dict[str, Callable[[Any], Any]]] = {}
"""Qualified name of a library's wrapper → returns the function that it runs, after which the lane is named."""


def label_of(kind: str, work: Any) -> str:
    """A lane label from what will run: a coroutine, a function, a bound method."""
    name = getattr(work, "__qualname__", None) or type(work).__qualname__
    unwrap = wrapped_work.get(name)
    if unwrap is not None:
        inner = guarded("naming a lane", unwrap, work)
        name = getattr(peel(inner, ())[0], "__qualname__", name)
    return _make_label(kind, str(name))


@functools.lru_cache(maxsize=LABELS_MAX)
def _make_label(kind: str, name: str) -> str:
    # Since Python 3.12 comprehensions are not functions; a lane must have the same name in all versions
    shown = _COMPREHENSION.sub("", name.rsplit("<locals>.", 1)[-1])
    return f"{kind}:{shown}"[:LABEL_CHARACTERS_MAX]


def enter_contexts(contexts: list[contextvars.Context], lane: Lane) -> None:
    for context in contexts:
        enter_context(context, lane)


def enter_context(context: contextvars.Context, lane: Lane) -> bool:
    """Make this the lane of code that will run in a Context; return whether it is."""
    try:
        context.run(set_in_own_context, _lane, lane)
    except RuntimeError:  # the Context is entered right now: the code in it keeps its lane
        return False
    return True


def set_lane_here(lane: Lane) -> None:
    """Make this the lane of the code that runs in the current Context from now on."""
    set_variable(_lane, lane)


class inside_thread:  # noqa: N801 -- reads as a statement
    """Run a block of a thread in a lane, including code that enters a copy of the parent's Context there."""

    __slots__ = ("_before", "_forced", "_handed", "_inside", "_lane_before", "_was_handed")

    def __init__(self, parent: Lane, lane: Lane, *, by: int, is_background: bool) -> None:
        """`by` identifies who handed the work over; `is_background`: the work is a library's own."""
        self._forced = (parent, lane)
        self._inside = inside_lane(lane)
        self._handed = (by, is_background)

    def __enter__(self) -> None:
        self._before, self._lane_before = thread_state.forced, thread_state.lane
        self._was_handed = (caller.handed.by, caller.handed.is_background)
        caller.handed.by, caller.handed.is_background = self._handed
        thread_state.forced = self._forced
        thread_state.lane = self._forced[1]
        self._inside.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        self._inside.__exit__(*exc_info)
        thread_state.forced, thread_state.lane = self._before, self._lane_before
        caller.handed.by, caller.handed.is_background = self._was_handed


RootOf = Callable[[], Lane | None]


class Carried(Protocol):
    """The context that a thread or a pool job runs inside; see `run.carried`."""

    ends_lane: bool

    def end_of(self, lane: Lane) -> LaneEnd | None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *exc_info: object) -> None: ...
