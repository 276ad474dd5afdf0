"""Timers of asyncio, and what other threads hand to a loop, as sources of order.

When a timer fires, or the loop comes to what a thread gave it, that takes a value of the run's logical clock. Each is
named like a call: its lane, what it calls, and its number there. Timers that a boundary's own body makes (a client's
timeouts) are left out: in a replay that body does not run.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from spanreplay import guard
from spanreplay._patch import Patches
from spanreplay.crossing import is_plumbing
from spanreplay.lane_end import LaneEnd
from spanreplay.lanes import HANDED_OVER, current_crossing, current_lane, has_lane
from spanreplay.replay.step_clock import clock_of
from spanreplay.run import Run, active_run
from spanreplay.steps import Outer

LABEL_CHARACTERS_MAX: Final = 60


def name_timer(run: Run, callback: Any) -> str:
    """The name of a timer that is made now, or '' for one that is not the agent's."""
    if current_crossing(run.root_lane) is not None or is_plumbing(run):
        return ""
    lane, label = current_lane(run.root_lane), _label_of(callback)
    return f"{lane.path}|{label}|{lane.next_index(f'timer {label}')}"


def install(patches: Patches) -> None:
    """Patch `call_at` and `call_soon_threadsafe`, which everything of the sort goes through in asyncio's own loops."""
    import asyncio.base_events

    def call_at(wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
        run = active_run()
        if run is None or len(args) < 2:
            return wrapped(*args, **kwargs)
        when, callback, *rest = args
        name = guarded_name(run, callback)
        if not name:
            return wrapped(*args, **kwargs)
        if run.session is not None:
            clock = clock_of(loop)
            handle = None if clock is None else clock.make_timer(name, when, callback, rest, kwargs.get("context"))
            return wrapped(*args, **kwargs) if handle is None else handle

        def fire(*values: Any) -> None:
            run.end_timer(name)
            callback(*values)

        return wrapped(when, Outer(fire), *rest, **kwargs)

    def call_soon_threadsafe(wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
        if not args or type(args[0]) is Outer:
            return wrapped(*args, **kwargs)
        callback, *rest = args
        if asyncio._get_running_loop() is loop and not _is_pool_call(rest):
            return wrapped(*args, **kwargs)
        run, name = guard.guarded("naming what a thread hands over", name_handed, callback, rest) or (None, "")
        if run is not None and name and run.session is not None:
            handle = _hand_over(run, name, loop, callback, rest, kwargs.get("context"))
            if handle is not None:
                return handle

        def fire(*values: Any) -> None:
            if run is not None and name and run.session is None and not run.is_ended:
                run.end_timer(name)
            callback(*values)

        return wrapped(Outer(fire), *rest, **kwargs)

    patches.wrap(asyncio.base_events.BaseEventLoop, "call_at", call_at)
    patches.wrap(asyncio.base_events.BaseEventLoop, "call_soon_threadsafe", call_soon_threadsafe)


def _is_pool_call(args: list[Any]) -> bool:
    """Whether a pool's future is handed over, which was done already: that is a matter of timing, too."""
    return bool(args) and isinstance(getattr(args[-1], "_spanreplay_lane", None), LaneEnd)


def name_handed(callback: Any, args: list[Any]) -> tuple[Run | None, str]:
    """The run that a thread hands something to its loop in, and the name of that; '' if it is not the agent's.

    A pool's future that is done is named by the lane of its work, in whichever thread that is noticed.
    """
    end = getattr(args[-1], "_spanreplay_lane", None) if args else None
    if isinstance(end, LaneEnd):
        return end.run, "" if end.is_inside else f"{end.lane}{HANDED_OVER}{_label_of(callback)}"
    run = active_run()
    if run is None or not has_lane() or current_crossing(run.root_lane) is not None or is_plumbing(run):
        return run, ""
    lane, label = current_lane(run.root_lane), _label_of(callback)
    return run, f"{lane.path}{HANDED_OVER}{label}|{lane.next_index(f'handed over {label}')}"


def _hand_over(run: Run, name: str, loop: Any, callback: Any, args: list[Any], context: Any) -> asyncio.Handle | None:
    """In a replay, what a loop does between the same two steps again; None if the recording does not know of it."""
    clock, gate = clock_of(loop), None if run.session is None else run.session.gate
    if clock is None or gate is None or gate.is_open or loop.is_closed():
        return None
    number = (gate.timers or {}).get(name, -1)
    if number < 0:
        return None
    handle = asyncio.Handle(callback, args, loop, context)
    clock.hand_over(number, handle)
    return handle


def _label_of(callback: Any) -> str:
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))[:LABEL_CHARACTERS_MAX]


def guarded_name(run: Run, callback: Any) -> str:
    """`name_timer`, or '' if that fails."""
    return guard.guarded("naming a timer", name_timer, run, callback) or ""
