"""Timers of asyncio, and callbacks that other threads hand to a loop, as sources of order.

When a timer fires, or the loop runs a callback that a thread handed over, it takes a value of the run's Lamport clock.
Each is named like a call: its lane, its callback, and its number there. Timers that a boundary's own body makes (a
client's timeouts) are left out: in a replay that body does not run.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.runtime.calls.open_call import is_plumbing
from spanreplay.runtime.context_variables import set_variable
from spanreplay.runtime.lanes import HANDED_OVER, current_crossing, current_lane, has_lane
from spanreplay.runtime.order.lane_end import LANE_END, HandedEnd, LaneEnd
from spanreplay.runtime.order.steps import FINALIZING, Outer
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import Run, active_run
from spanreplay.runtime.timer_names import guarded_name, label_of_callback

_ACLOSE: Final = "async_generator_athrow"
"""Type of the object returned by an asynchronous generator's `aclose()`; it has no other name."""


class _Made(threading.local):
    timers = 0


_made = _Made()
"""How many timers this thread has set."""


def install(patches: Patches) -> None:
    """Patch `call_at` and `call_soon_threadsafe`, through which asyncio's loops set and hand over everything."""
    import asyncio.base_events

    patches.wrap(asyncio.base_events.BaseEventLoop, "call_at", call_at)
    patches.wrap(asyncio.base_events.BaseEventLoop, "call_soon_threadsafe", call_soon_threadsafe)
    if sys.version_info >= (3, 11):
        patches.wrap(asyncio.Timeout, "reschedule", reschedule)


def reschedule(wrapped: Any, scope: Any, args: Any, kwargs: Any) -> Any:
    """A deadline of `asyncio.timeout`: whether it has already passed, and needs no timer, depends on timing."""
    run, when = active_run(), args[0] if args else kwargs.get("when")
    name = "" if run is None or when is None else guarded_name(run, scope.__class__)
    return (
        wrapped(*args, **kwargs)
        if run is None or not name
        else run.order.set_deadline(name, _Deadline(wrapped, scope, when))
    )


class _Deadline:
    """The deadline of an `asyncio.timeout`: no timer is set for one that has passed."""

    def __init__(self, reschedule: Callable[[float], None], scope: Any, moment: float) -> None:
        self._reschedule = reschedule
        self._scope = scope
        self.moment = moment
        self.has_passed = False

    def set(self) -> None:
        """Set the deadline."""
        before = _made.timers
        self._reschedule(self.moment)
        self.has_passed = _made.timers == before

    def set_at(self, moment: float) -> None:
        """Set another deadline, but have the scope report this one."""
        self._reschedule(moment)
        self._scope._when = self.moment


def call_at(wrapped: Any, loop: Any, args: Any, kwargs: Any, *, is_delay: bool = False) -> Any:
    """Name a timer: when it fires is part of the order."""
    _made.timers += 1
    run = active_run()
    if run is None or len(args) < 2 or type(args[1]) is Outer:
        return wrapped(*args, **kwargs)
    name = guarded_name(run, args[1])
    if not name:
        return wrapped(*args, **kwargs)
    may_be_early = not is_delay and not isinstance(loop, asyncio.BaseEventLoop)
    return run.order.set_timer(name, loop, (wrapped, args, kwargs), may_be_early=may_be_early)


def call_later(wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
    """`call_at` for a loop that does not implement one through the other."""
    return call_at(wrapped, loop, args, kwargs, is_delay=True)


def call_soon_threadsafe(wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
    """Name a callback that another thread hands over: when the loop runs it is part of the order."""
    if not args or type(args[0]) is Outer:
        return wrapped(*args, **kwargs)
    callback, *rest = args
    if rest and type(rest[0]).__name__ == _ACLOSE:  # of an abandoned generator: the loop closes it
        return wrapped(Outer(functools.partial(_finalize, callback)), *rest, **kwargs)
    end = guard.guarded("naming what a thread hands over", _end_of, callback, rest)
    if end is None and asyncio._get_running_loop() is loop:
        return wrapped(*args, **kwargs)
    return hand_over(wrapped, loop, end, args, kwargs)


def hand_over(wrapped: Any, loop: Any, end: LaneEnd | None, args: Any, kwargs: Any) -> Any:
    """Have a loop run a callback for another thread, with `wrapped`."""
    callback, *rest = args
    run, name = guard.guarded("naming what a thread hands over", name_handed, callback, end) or (None, "")
    try:
        if run is None or not name:
            return wrapped(Outer(callback), *rest, **kwargs)
        return run.order.hand_over(name, loop, (wrapped, args, kwargs))
    finally:
        if isinstance(end, HandedEnd):
            end.leave()


def _finalize(callback: Any, *args: Any) -> None:
    set_variable(FINALIZING, True)  # in the Context of this one callback, which the task that it makes inherits
    callback(*args)


def _end_of(callback: Any, args: list[Any]) -> LaneEnd | None:
    """The lane end behind a handed-over callback: of a pool's future that is done, or of a call that a thread has made.

    A future may already be done and be handed over by the loop's own thread: that depends on timing, too.
    """
    thread = getattr(callback, "__self__", None)
    if isinstance(thread, threading.Thread):
        end = vars(thread).pop(LANE_END, None)
    else:
        end = getattr(args[-1], LANE_END, None) if args else None
    return end if isinstance(end, LaneEnd) else None


def name_handed(callback: Any, end: LaneEnd | None) -> tuple[Run | None, str]:
    """The run in which a thread hands over a callback, and the callback's name; '' if it is not the agent's.

    A lane's end is named after the lane, whichever thread notices it.
    """
    if isinstance(end, HandedEnd):
        return end.run, "" if end.is_inside else end.name
    if end is not None:
        return end.run, "" if end.is_inside else f"{end.lane}{HANDED_OVER}{label_of_callback(callback)}"
    run = active_run()
    if run is None or not has_lane() or current_crossing(run.root_lane) is not None or is_plumbing(run):
        return run, ""
    lane, label = current_lane(run.root_lane), label_of_callback(callback)
    return run, f"{lane.path}{HANDED_OVER}{label}|{lane.next_index(f'handed over {label}')}"
