"""Timers of asyncio, and what other threads hand to a loop, as sources of order.

When a timer fires, or the loop comes to what a thread gave it, that takes a value of the run's logical clock. Each is
named like a call: its lane, what it calls, and its number there. Timers that a boundary's own body makes (a client's
timeouts) are left out: in a replay that body does not run.
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
"""Type of what `aclose()` of an asynchronous generator gives; it has no other name."""


class _Made(threading.local):
    timers = 0


_made = _Made()
"""How many timers this thread has set."""


def install(patches: Patches) -> None:
    """Patch `call_at` and `call_soon_threadsafe`, which everything of the sort goes through in asyncio's own loops."""
    import asyncio.base_events

    patches.wrap(asyncio.base_events.BaseEventLoop, "call_at", call_at)
    patches.wrap(asyncio.base_events.BaseEventLoop, "call_soon_threadsafe", call_soon_threadsafe)
    if sys.version_info >= (3, 11):
        patches.wrap(asyncio.Timeout, "reschedule", reschedule)


def reschedule(wrapped: Any, scope: Any, args: Any, kwargs: Any) -> Any:
    """A deadline of `asyncio.timeout`: whether it has passed already, and is no timer, is a matter of time."""
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
        """Set it."""
        before = _made.timers
        self._reschedule(self.moment)
        self.has_passed = _made.timers == before

    def set_at(self, moment: float) -> None:
        """Set another one, and have it say this one."""
        self._reschedule(moment)
        self._scope._when = self.moment


def call_at(wrapped: Any, loop: Any, args: Any, kwargs: Any, *, is_delay: bool = False) -> Any:
    """Name a timer: when it fires is a part of the order."""
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
    """`call_at` for a loop that does not make one of the other."""
    return call_at(wrapped, loop, args, kwargs, is_delay=True)


def call_soon_threadsafe(wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
    """Name what another thread hands over: when the loop comes to it is a part of the order."""
    if not args or type(args[0]) is Outer:
        return wrapped(*args, **kwargs)
    callback, *rest = args
    if rest and type(rest[0]).__name__ == _ACLOSE:  # of a generator that was left: a loop closes it
        return wrapped(Outer(functools.partial(_finalize, callback)), *rest, **kwargs)
    end = guard.guarded("naming what a thread hands over", _end_of, callback, rest)
    if end is None and asyncio._get_running_loop() is loop:
        return wrapped(*args, **kwargs)
    return hand_over(wrapped, loop, end, args, kwargs)


def hand_over(wrapped: Any, loop: Any, end: LaneEnd | None, args: Any, kwargs: Any) -> Any:
    """Have a loop do something for another thread, with `wrapped`."""
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
    """The end of what is handed over: of a pool's future that is done, or of a call that a thread has made.

    A future may have been done already and be handed over by the loop's own thread: that is a matter of timing, too.
    """
    thread = getattr(callback, "__self__", None)
    if isinstance(thread, threading.Thread):
        end = vars(thread).pop(LANE_END, None)
    else:
        end = getattr(args[-1], LANE_END, None) if args else None
    return end if isinstance(end, LaneEnd) else None


def name_handed(callback: Any, end: LaneEnd | None) -> tuple[Run | None, str]:
    """The run that a thread hands something to its loop in, and the name of that; '' if it is not the agent's.

    What ends a lane is named by that lane, in whichever thread that is noticed.
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
