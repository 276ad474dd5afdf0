"""Tasks and futures that a set keeps in the same order in every run.

A set's order is that of its members' hashes, and a task's hash is its address. `asyncio.wait`, a task group that
cancels what is left, and every agent with a set of its own go through such sets, so that what they do next would
differ from run to run. Ours hash by their lane's number instead. Nothing else about them is different.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from spanreplay._patch import Patches

_ends: Final = itertools.count(1)
ENDING: Final = threading.RLock()


class LaneTask(asyncio.Task):  # type: ignore[type-arg]  # not generic at run time before 3.12
    """A task that hashes by its lane's number."""

    _spanreplay_number = 0

    def __hash__(self) -> int:
        return self._spanreplay_number


def make_task(number: int, coro: Any, **options: Any) -> LaneTask:
    """A task of this number; it has it before anything in it runs."""
    task = LaneTask.__new__(LaneTask)
    task._spanreplay_number = number
    task.__init__(coro, **options)  # type: ignore[misc]  # an eager task runs in here
    return task


def create_numbered(loop: Any, number: int, create: Callable[[], Any], *, is_named: bool) -> Any:
    """What `create` gives, whose task becomes one of ours; left alone where a task factory of the agent's is set."""
    standard = getattr(loop, "_task_factory", _UNKNOWN)
    eager = getattr(asyncio, "eager_task_factory", _UNKNOWN)
    if standard is not None and standard is not eager:
        return create()
    options = {} if standard is None else {"eager_start": True}

    def factory(loop: Any, coro: Any, **given: Any) -> Any:
        loop._task_factory = standard  # what an eager task creates has a number of its own
        task = make_task(number, coro, loop=loop, **options, **given)
        names.append(task.get_name())
        return task

    names: list[str] = []
    loop._task_factory = factory
    try:
        task = create()
    finally:
        loop._task_factory = standard
    if names and not is_named and task.get_name() != names[0]:
        task.set_name(names[0])  # Python 3.12 calls it "None"
    return task


_UNKNOWN: Final = object()


class LaneFuture(concurrent.futures.Future):  # type: ignore[type-arg]  # as above
    """A pool's future that hashes by its lane's number, and knows when it was done."""

    _spanreplay_number = 0
    _spanreplay_end = 0
    _spanreplay_then: Callable[[], None] | None = None
    """Called when it is done and everybody who waited has been told."""

    _spanreplay_lane: LaneEnd | None = None
    """The end of its lane, which comes when others see that it is done."""
    _is_ending = False

    def __hash__(self) -> int:
        return self._spanreplay_number

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
        ENDING.acquire()  # of two that end at once the one that is noted first is seen first
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


class LaneEnd(Protocol):
    """The end of a lane; see `lane_end.LaneEnd`."""

    lane: str

    def begin(self, future: Any, begin: Callable[[], bool]) -> bool: ...

    def cancel(self, future: Any, cancel: Callable[[], bool]) -> bool: ...

    def wait(self) -> None: ...

    def note(self) -> None: ...

    def release(self) -> None: ...


def adopt_future(future: Any, number: int, end: LaneEnd | None) -> bool:
    """Make a pool's new future one of ours; False, and left alone, if it is of a class of the agent's."""
    is_plain = type(future) is concurrent.futures.Future
    if is_plain:
        future.__class__ = LaneFuture
        future._spanreplay_lane = end
        future._spanreplay_number = number
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


class _InOrder(set[Any]):
    """A set with an order."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._order = dict.fromkeys(items)
        super().__init__(self._order)

    def __iter__(self) -> Iterator[Any]:
        return iter([item for item in self._order if item in self])

    def pop(self) -> Any:
        for item in self:
            self.remove(item)
            return item
        return super().pop()  # which raises


def install(patches: Patches, is_active: Callable[[], bool]) -> None:
    """Patch what goes through sets: `asyncio.wait`, and the order in which a pool's finished futures come."""
    import concurrent.futures._base as base

    def yield_finished(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if args and isinstance(args[0], list):  # taken from its end
            args[0].sort(key=lambda future: -int(getattr(future, "_spanreplay_end", 0)))
        return wrapped(*args, **kwargs)

    async def wait_in_order(wrapped: Any, fs: Any, kwargs: Any) -> Any:
        given = list(dict.fromkeys(fs))
        done, pending = await wrapped(given, **kwargs)
        if not all(asyncio.isfuture(one) for one in given) or all(isinstance(one, LaneTask) for one in given):
            return done, pending
        return _InOrder(one for one in given if one in done), _InOrder(one for one in given if one in pending)

    def wait(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if not is_active() or len(args) != 1 or asyncio.isfuture(args[0]) or asyncio.iscoroutine(args[0]):
            return wrapped(*args, **kwargs)
        return wait_in_order(wrapped, args[0], kwargs)

    patches.wrap(base, "_yield_finished_futures", yield_finished)
    patches.wrap(asyncio.tasks, "wait", wait)
    patches.replace(asyncio, "wait", asyncio.tasks.wait)
