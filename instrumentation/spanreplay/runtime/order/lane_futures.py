"""Tasks and futures that hash by their lane, so that sets of them have a fixed order."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import itertools
import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from spanreplay.model.own_threads import make_lock

_ends: Final = itertools.count(1)

ENDING: Final = make_lock()

_NUMBER_BITS: Final = 20


def hash_lane(number: int, path: str) -> int:
    """The hash of a lane: its number, which sets the order of a set, in the low bits; its path above.

    The first child of every lane has number 1; without the paths they would all collide.
    """
    return (zlib.crc32(path.encode("utf-8", "surrogatepass")) << _NUMBER_BITS) + number


class LaneTask(asyncio.Task):  # type: ignore[type-arg]  # not generic at run time before 3.12
    """A task that hashes by its lane."""

    __slots__ = ("_spanreplay_hash",)  # no dictionary for each task
    _spanreplay_hash: int

    def __hash__(self) -> int:
        return self._spanreplay_hash


def _name_like(own: type, base: type) -> None:
    """Let a class show itself as the one that a program would see without us: in logs, messages and tracebacks."""
    own.__name__, own.__qualname__, own.__module__ = base.__name__, base.__qualname__, base.__module__


_name_like(LaneTask, asyncio.Task)


def make_task(lane_hash: int, coro: Any, **options: Any) -> LaneTask:
    """Create a task with this hash, which is set before any of its code runs."""
    task = LaneTask.__new__(LaneTask)
    task._spanreplay_hash = lane_hash
    task.__init__(coro, **options)  # type: ignore[misc]  # an eager task runs in here
    return task


def can_number(loop: Any) -> bool:
    """Whether a loop makes its tasks itself; False if the agent has set its own task factory."""
    standard = getattr(loop, "_task_factory", _UNKNOWN)
    return standard is None or standard is _EAGER


def create_numbered(
    loop: Any,
    lane_hash: int,
    create: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    context: contextvars.Context | None = None,
) -> Any:
    """Return `create(*args, **kwargs)`, its task being a `LaneTask`, in this Context; unchanged unless `can_number`."""
    if not can_number(loop):
        return create(*args, **kwargs)
    standard = loop._task_factory
    options: dict[str, Any] = {} if standard is None else {"eager_start": True}
    if context is not None:
        options["context"] = context
    names: list[str] = []

    def factory(loop: Any, coro: Any, **given: Any) -> Any:
        loop._task_factory = standard  # tasks that an eager task creates get numbers of their own
        task = make_task(lane_hash, coro, loop=loop, **options, **given)
        if _RENAMES:
            names.append(task.get_name())
        return task

    loop._task_factory = factory
    try:
        task = create(*args, **kwargs)
    finally:
        loop._task_factory = standard
    if names and kwargs.get("name") is None and task.get_name() != names[0]:
        task.set_name(names[0])  # Python 3.12 calls it "None"
    return task


_UNKNOWN: Final = object()
_EAGER: Final = getattr(asyncio, "eager_task_factory", object())
TAKES_CONTEXT: Final = sys.version_info >= (3, 11)
"""Whether a task can be told the Context that it runs in."""
_RENAMES: Final = sys.version_info >= (3, 12)
"""Whether a loop renames a task from its factory to "None" if nobody gave it a name."""


class LaneFuture(concurrent.futures.Future):  # type: ignore[type-arg]  # as above
    """A pool's future that hashes by its lane and knows when it was done."""

    _spanreplay_hash = 0
    _spanreplay_end = 0
    _spanreplay_then: Callable[[], None] | None = None
    """Called after the future is done and everybody who waited has been told."""

    _spanreplay_lane: LaneEnd | None = None
    """The end of its lane, which is noted when others see that the future is done."""
    _is_ending = False

    def __hash__(self) -> int:
        return self._spanreplay_hash

    def cancel(self) -> bool:
        if self._spanreplay_lane is None:
            return super().cancel()
        return self._spanreplay_lane.cancel(self, super().cancel)

    def set_running_or_notify_cancel(self) -> bool:
        if self._spanreplay_lane is None:
            return super().set_running_or_notify_cancel()
        return self._spanreplay_lane.begin(self, super().set_running_or_notify_cancel)

    def set_result(self, result: Any) -> None:
        self._end(super().set_result, result)

    def set_exception(self, exception: BaseException | None) -> None:
        self._end(super().set_exception, exception)

    def _end(self, settle: Callable[[Any], None], value: Any) -> None:
        if self._spanreplay_lane is not None:
            self._spanreplay_lane.wait()
        ENDING.acquire()  # if two end at the same time, the first to be noted is the first to be seen
        self._is_ending = True
        try:
            if self._spanreplay_lane is not None:
                self._spanreplay_lane.note()
            self._spanreplay_end = next(_ends)
            settle(value)
        finally:
            self._seen()

    def _seen(self) -> None:
        if self._is_ending:
            self._is_ending = False
            ENDING.release()
            if self._spanreplay_lane is not None:
                self._spanreplay_lane.release()

    def _invoke_callbacks(self) -> None:
        self._seen()
        super()._invoke_callbacks()  # type: ignore[misc]  # not in the stubs
        then, self._spanreplay_then = self._spanreplay_then, None
        if then is not None:
            then()


_name_like(LaneFuture, concurrent.futures.Future)


class LaneEnd(Protocol):
    """The end of a lane; see `lane_end.LaneEnd`."""

    lane: str

    def begin(self, future: Any, begin: Callable[[], bool]) -> bool: ...

    def cancel(self, future: Any, cancel: Callable[[], bool]) -> bool: ...

    def wait(self) -> None: ...

    def note(self) -> None: ...

    def release(self) -> None: ...


def adopt_future(future: Any, lane_hash: int, end: LaneEnd | None) -> bool:
    """Make a pool's new future a `LaneFuture`; if its class is the agent's own, return False, change nothing."""
    is_plain = type(future) is concurrent.futures.Future
    if is_plain:
        future.__class__ = LaneFuture
        future._spanreplay_lane = end
        future._spanreplay_hash = lane_hash
    return is_plain


def when_told(future: Any, then: Callable[[], None]) -> None:
    """Call `then` once a pool's future is done and everybody who waited for it has been told."""
    if not isinstance(future, LaneFuture):
        future.add_done_callback(lambda _: then())
        return
    with future._condition:
        is_done = future._state in _DONE
        if not is_done:
            future._spanreplay_then = then
    if is_done:
        then()


_DONE: Final = ("CANCELLED", "CANCELLED_AND_NOTIFIED", "FINISHED")
