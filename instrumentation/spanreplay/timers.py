"""Timers of asyncio as a source of order: when one fires, it takes a value of the run's logical clock.

A timer is named like a call: its lane, what it calls, and its number there. Timers that a boundary's own body makes
(a client's timeouts) are left out: in a replay that body does not run.
"""

from __future__ import annotations

from typing import Any, Final

from spanreplay import guard
from spanreplay._patch import Patches
from spanreplay.crossing import is_plumbing
from spanreplay.lanes import current_crossing, current_lane
from spanreplay.run import Run, active_run

LABEL_CHARACTERS_MAX: Final = 60


def name_timer(run: Run, callback: Any) -> str:
    """The name of a timer that is made now, or '' for one that is not the agent's."""
    if current_crossing(run.root_lane) is not None or is_plumbing(run):
        return ""
    label = str(getattr(callback, "__qualname__", type(callback).__qualname__))[:LABEL_CHARACTERS_MAX]
    lane = current_lane(run.root_lane)
    return f"{lane.path}|{label}|{lane.next_index(f'timer {label}')}"


def install(patches: Patches) -> None:
    """Patch `call_at`, which every timer of asyncio's own loops goes through."""
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
            clock = loop.__dict__.get("_spanreplay_clock")
            handle = None if clock is None else clock.make_timer(name, when, callback, rest, kwargs.get("context"))
            return wrapped(*args, **kwargs) if handle is None else handle

        def fire(*values: Any) -> None:
            # Noted right before the step of what the callback wakes up: a call completes in its task's own step, too
            loop.call_soon(run.end_timer, name)
            callback(*values)

        return wrapped(when, fire, *rest, **kwargs)

    patches.wrap(asyncio.base_events.BaseEventLoop, "call_at", call_at)


def guarded_name(run: Run, callback: Any) -> str:
    """`name_timer`, or '' if that fails."""
    return guard.guarded("naming a timer", name_timer, run, callback) or ""
