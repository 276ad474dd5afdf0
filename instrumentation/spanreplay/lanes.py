"""Lanes: logical threads of control, named where concurrency is created, never where it is scheduled.

A child lane is its parent's path plus kind, qualified name and a counter of that name in the parent, for example
`main/t:fetch#3`. Creation order is program order inside the parent lane, so a name does not depend on timing, and
work that a library adds under another name does not shift it.

Hooks: `BaseEventLoop.create_task`, `ThreadPoolExecutor.submit`, `Thread.start`. A context variable carries the lane;
code that runs a task inside a `Context` of its own making (`ctx.run`, `partial(ctx.run, f)`) is followed into it.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import itertools
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from spanreplay import lane_order
from spanreplay._patch import Patches
from spanreplay.guard import guarded
from spanreplay.lane_order import LaneEnd, adopt_future, create_numbered
from spanreplay.local import origin

LABEL_CHARACTERS_MAX: Final = 80
HANDED_OVER: Final = "|>"
"""In the name of what a thread makes an event loop do, in front of what is called."""
_COMPREHENSION: Final = re.compile(r"<(?:list|set|dict)comp>\.")
_counting = threading.RLock()
_making = threading.RLock()  # the lane around a lane may be made with it


class Lane:
    """One logical thread of control; counters are guarded by one lock of the module."""

    __slots__ = ("_calls", "_children", "_named", "number", "owner", "path")

    def __init__(self, path: str, owner: Any = None, number: int = 0) -> None:
        self.path = path
        self.number = number
        """Which of its label it is in its parent, from 1; 0 for a lane that is not numbered."""
        self.owner = owner
        """The crossing that this lane was created inside of, or None."""
        self._children: dict[str, int] = {}
        self._calls: dict[str, Iterator[int]] = {}
        self._named: dict[str, Lane] = {}

    def child(self, label: str, owner: Any = None) -> Lane:
        """A new lane below this one; the n-th of its label is `label#n`, from 1."""
        with _counting:
            count = self._children[label] = self._children.get(label, 0) + 1
        return Lane(f"{self.path}/{label}#{count}", owner, count)

    def named_child(self, label: str, owner: Any = None) -> Lane:
        """The lane below this one whose label is a framework's own id; the same object each time."""
        with _counting:
            lane = self._named.get(label)
            if lane is None:
                lane = self._named[label] = Lane(f"{self.path}/{label}", owner)
        return lane

    def next_index(self, boundary: str) -> int:
        """How many calls of this boundary came before in this lane."""
        numbers = self._calls.get(boundary)
        if numbers is None:
            with _counting:
                numbers = self._calls.setdefault(boundary, itertools.count())
        return next(numbers)  # one operation, which threads cannot break up


_lane: contextvars.ContextVar[Lane | None] = contextvars.ContextVar("spanreplay_lane", default=None)
_crossing: contextvars.ContextVar[Any] = contextvars.ContextVar("spanreplay_crossing", default=None)


is_plumbing_here: contextvars.ContextVar[bool] = contextvars.ContextVar("spanreplay_plumbing", default=False)
"""Whether what runs carries the traffic of another boundary."""


def is_of_agent(context: contextvars.Context) -> bool:
    """Whether what runs in a Context is the agent's own: no boundary's body and no plumbing."""
    if context.get(_crossing) is not None or context.get(is_plumbing_here):
        return False
    lane = context.get(_lane)
    return lane is None or lane.owner is None


def _set_without_collecting(variable: contextvars.ContextVar[Any], value: Any) -> contextvars.Token[Any]:
    """`ContextVar.set`, during which no garbage is collected.

    Before Python 3.12 a collection may come in the midst of it; a generator that it closes (OpenTelemetry's, which
    resets a variable of its own) then takes the Context's variables away that are being copied: a crash.
    """
    if not gc.isenabled():
        return variable.set(value)
    gc.disable()
    try:
        return variable.set(value)
    finally:
        gc.enable()


def _reset_without_collecting(variable: contextvars.ContextVar[Any], token: contextvars.Token[Any]) -> None:
    if not gc.isenabled():
        variable.reset(token)
        return
    gc.disable()
    try:
        variable.reset(token)
    finally:
        gc.enable()


def _set_plainly(variable: contextvars.ContextVar[Any], value: Any) -> contextvars.Token[Any]:
    return variable.set(value)


def _reset_plainly(variable: contextvars.ContextVar[Any], token: contextvars.Token[Any]) -> None:
    variable.reset(token)


_collects_anywhere: Final = sys.version_info < (3, 12)
_set = _set_without_collecting if _collects_anywhere else _set_plainly
_reset = _reset_without_collecting if _collects_anywhere else _reset_plainly


class inside_call:  # noqa: N801 -- reads as a statement: `with inside_call(crossing):`
    """A block in which a call waits for its outcome; it is no step of the agent that this ends."""

    __slots__ = ("_crossing", "_token")

    def __init__(self, crossing: Any) -> None:
        self._crossing = crossing

    def __enter__(self) -> None:
        self._token = _set(_crossing, self._crossing)

    def __exit__(self, *exc_info: object) -> None:
        try:
            _reset(_crossing, self._token)
        except ValueError:  # left in another Context than it was entered in
            _set(_crossing, None)


class _Thread(threading.local):
    lane: Lane | None = None
    """The lane that this thread, or the pool call that it runs, began in."""

    # (parent, child): code that enters a copied Context finds the parent's lane there, and means the child's
    forced: tuple[Lane, Lane] | None = None
    is_submitting = False


_thread = _Thread()


def current_lane(root: Lane) -> Lane:
    """The lane of the running code, `root` where none was set."""
    lane = _lane.get() or root
    forced = _thread.forced
    if forced is not None and lane is forced[0]:
        return forced[1]
    return lane


def has_lane() -> bool:
    """Whether the calling code is in a lane that was made for it: no thread of a library that nobody saw start."""
    return _lane.get() is not None or _thread.forced is not None


def current_place(root: Lane) -> tuple[Lane, Any]:
    """The lane and the boundary call that the running code is inside of."""
    lane = current_lane(root)
    crossing = _crossing.get()
    return lane, crossing if crossing is not None else lane.owner


def current_crossing(root: Lane) -> Any:
    """The boundary call that the running code is inside of, or None; crosses threads with the lane."""
    crossing = _crossing.get()
    return crossing if crossing is not None else current_lane(root).owner


def thread_lane(root: Lane) -> Lane:
    """The lane that this thread, or the pool call that it runs, began in, whatever task runs in it now."""
    return _thread.lane or root


class _CallLane(Lane):
    """The lane inside of a call. Named when somebody asks: most bodies make no calls and start nothing."""

    __slots__ = ()

    def __init__(self, crossing: Any) -> None:  # and nothing else: what is missing is made by `__getattr__`
        self.owner = crossing
        self.number = 0

    def __getattr__(self, name: str) -> Any:
        if name not in Lane.__slots__:
            raise AttributeError(name)
        with _making:
            try:
                return object.__getattribute__(self, name)  # another thread was faster
            except AttributeError:
                made: Any = {}
            if name == "path":
                label = f"{self.owner.boundary}#{self.owner.index + 1}"[-LABEL_CHARACTERS_MAX:]
                made = f"{self.owner.lane.path}/{label}"
            setattr(self, name, made)
            return made


CrossingTokens = tuple[contextvars.Token[Any], contextvars.Token[Lane | None]]
"""What `leave_crossing` undoes."""


def enter_crossing(crossing: Any) -> CrossingTokens:
    """Make `crossing` the current one, in a lane of its own; give the result to `leave_crossing`.

    A replay that serves the call does not run its body: what the body counts must not number what comes after it.
    """
    return _set(_crossing, crossing), _set(_lane, _CallLane(crossing))


def leave_crossing(crossing: Any, tokens: CrossingTokens) -> None:
    """Undo `enter_crossing`; in another context than it was entered in (generators), as far as it reached there."""
    try:
        _reset(_crossing, tokens[0])
        _reset(_lane, tokens[1])
    except ValueError:
        _set(_crossing, None)
        lane = _lane.get()
        if type(lane) is _CallLane and lane.owner is crossing:
            _set(_lane, crossing.lane)


def enter_lane(lane: Lane) -> None:
    """Be in a lane from now on: a process that was just started."""
    _set(_lane, lane)
    _set(_crossing, lane.owner)
    _thread.forced = None


def is_within(path: str, above: str) -> bool:
    """Whether a lane is another one or lies below it."""
    return path == above or path.startswith(above + "/")


class inside_lane:  # noqa: N801 -- reads as a statement: `with inside_lane(lane):`
    """Run a block in a lane."""

    __slots__ = ("_lane", "_token")

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def __enter__(self) -> Lane:
        self._token = _set(_lane, self._lane)
        return self._lane

    def __exit__(self, *exc_info: object) -> None:
        try:
            _reset(_lane, self._token)
        except ValueError:  # left in another Context than it was entered in
            _set(_lane, None)


@contextmanager
def unnumbered_threads() -> Iterator[None]:
    """A block whose new threads work for many: they are no lanes."""
    before, _thread.is_submitting = _thread.is_submitting, True
    try:
        yield
    finally:
        _thread.is_submitting = before


LAYERS_MAX: Final = 16


def _peel(function: Any, args: tuple[Any, ...]) -> tuple[Any, list[contextvars.Context]]:
    """The work itself and the Contexts it will run in, below `partial(ctx.run, f)`, `ctx.run, f` and their like."""
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
"""Qualified name of a library's wrapper → gives what it runs, whose name the lane gets."""


def label_of(kind: str, work: Any) -> str:
    """A lane label from what will run: a coroutine, a function, a bound method."""
    name = getattr(work, "__qualname__", None) or type(work).__qualname__
    unwrap = wrapped_work.get(name)
    if unwrap is not None:
        inner = guarded("naming a lane", unwrap, work)
        name = getattr(_peel(inner, ())[0], "__qualname__", name)
    # Since Python 3.12 comprehensions are no functions; a lane must have one name in all versions
    shown = _COMPREHENSION.sub("", str(name).rsplit("<locals>.", 1)[-1])
    return f"{kind}:{shown}"[:LABEL_CHARACTERS_MAX]


def _enter(contexts: list[contextvars.Context], lane: Lane) -> None:
    for context in contexts:
        try:
            context.run(_set, _lane, lane)
        except RuntimeError:  # the Context is entered right now: the code in it keeps its lane
            continue


class _inside_thread:  # noqa: N801 -- reads as a statement
    """Run a block of a thread in a lane, also what enters a copy of the parent's Context there."""

    __slots__ = ("_before", "_by_agent", "_forced", "_inside", "_lane_before", "_was_by_agent")

    def __init__(self, parent: Lane, lane: Lane, *, by_agent: bool) -> None:
        """`by_agent` says whether the agent handed the work over."""
        self._forced = (parent, lane)
        self._inside = inside_lane(lane)
        self._by_agent = by_agent

    def __enter__(self) -> None:
        self._before, self._lane_before = _thread.forced, _thread.lane
        self._was_by_agent, origin.handed.by_agent = origin.handed.by_agent, self._by_agent
        _thread.forced = self._forced
        _thread.lane = self._forced[1]
        self._inside.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        self._inside.__exit__(*exc_info)
        _thread.forced, _thread.lane = self._before, self._lane_before
        origin.handed.by_agent = self._was_by_agent


class Carried(Protocol):
    """What a thread or a pool call runs inside of; see `run.carried`."""

    ends_lane: bool

    def end_of(self, lane: Lane) -> LaneEnd | None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *exc_info: object) -> None: ...


def install(patches: Patches, root_of: Callable[[], Lane | None], carry: Callable[[Lane], Carried]) -> None:
    """Patch the places where concurrency is created.

    `root_of` gives the root lane of the active run, or None (then nothing happens); `carry` makes, where a thread or
    a pool call is created, what its work then runs inside of: the run.
    """
    lane_order.install(patches, lambda: root_of() is not None)
    _install_tasks(patches, root_of)
    _install_pools(patches, root_of, carry)
    _install_threads(patches, root_of, carry)


def wrap_create_task(patches: Patches, loop_class: type, root_of: Callable[[], Lane | None]) -> None:
    """Give every task that loops of a class create a lane of its own."""

    def create_task(wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
        root = root_of()
        if root is None or not args:
            return wrapped(*args, **kwargs)
        parent = current_lane(root)
        lane = parent.child(label_of("t", args[0]), current_crossing(root))
        is_named = kwargs.get("name") is not None
        context = kwargs.get("context")
        if context is not None:
            _enter([context], lane)
            return create_numbered(loop, lane.number, lambda: wrapped(*args, **kwargs), is_named=is_named)
        with inside_lane(lane):
            return create_numbered(loop, lane.number, lambda: wrapped(*args, **kwargs), is_named=is_named)

    patches.wrap(loop_class, "create_task", create_task)


def _install_tasks(patches: Patches, root_of: Callable[[], Lane | None]) -> None:
    import asyncio
    import asyncio.base_events
    import asyncio.tasks

    def as_completed(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        # asyncio puts the coroutines into a set and makes tasks of them in the order of their addresses
        loop = asyncio._get_running_loop()
        if root_of() is None or loop is None or not args:
            return wrapped(*args, **kwargs)
        work = [loop.create_task(w) if asyncio.iscoroutine(w) else w for w in dict.fromkeys(args[0])]
        return wrapped(work, *args[1:], **kwargs)

    patches.wrap(asyncio.tasks, "as_completed", as_completed)
    patches.replace(asyncio, "as_completed", asyncio.tasks.as_completed)
    wrap_create_task(patches, asyncio.base_events.BaseEventLoop, root_of)


def _install_pools(patches: Patches, root_of: Callable[[], Lane | None], carry: Callable[[Lane], Carried]) -> None:
    import concurrent.futures

    def submit(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
        root = root_of()
        if root is None or not args:
            return wrapped(*args, **kwargs)
        function, *rest = args
        parent = current_lane(root)
        work, contexts = _peel(function, tuple(rest))
        lane = parent.child(label_of("x", work), current_crossing(root))
        _enter(contexts, lane)
        carried = carry(lane)
        by_agent = origin.is_handed_by_agent(sys._getframe(1))
        adopting = threading.RLock()

        def run(*a: Any, **k: Any) -> Any:
            with _inside_thread(parent, lane, by_agent=by_agent), carried:
                try:
                    return function(*a, **k)
                finally:
                    with adopting:  # the future must be ours before it ends
                        pass

        origin.enters_thread(run.__code__)

        _thread.is_submitting = True  # a worker thread that is spawned now must not take a lane number
        try:
            with adopting:
                future = wrapped(run, *rest, **kwargs)
                carried.ends_lane = not adopt_future(future, lane.number, carried.end_of(lane))
        finally:
            _thread.is_submitting = False
        return future

    patches.wrap(concurrent.futures.ThreadPoolExecutor, "submit", submit)


def _install_threads(patches: Patches, root_of: Callable[[], Lane | None], carry: Callable[[Lane], Carried]) -> None:
    def start(wrapped: Any, thread: Any, args: Any, kwargs: Any) -> Any:
        root = root_of()
        if root is None or _thread.is_submitting or thread.ident is not None:
            return wrapped(*args, **kwargs)
        target = getattr(thread, "_target", None)
        work, contexts = _peel(target, getattr(thread, "_args", ())) if target is not None else (type(thread), [])
        parent = current_lane(root)
        lane = parent.child(label_of("th", work), current_crossing(root))
        _enter(contexts, lane)
        carried = carry(lane)
        by_agent = origin.is_handed_by_agent(sys._getframe(1))
        body = thread.run

        def run() -> None:
            thread.__dict__.pop("run", None)
            with _inside_thread(parent, lane, by_agent=by_agent), carried:
                body()

        origin.enters_thread(run.__code__)

        thread.run = run
        return wrapped(*args, **kwargs)

    patches.wrap(threading.Thread, "start", start)
