"""Names of timers and of callbacks that threads hand over."""

from __future__ import annotations

from typing import Any, Final

from spanreplay.model import guard
from spanreplay.runtime.calls.open_call import is_plumbing
from spanreplay.runtime.lanes import current_crossing, current_lane
from spanreplay.runtime.run import Run

LABEL_CHARACTERS_MAX: Final = 60


def name_timer(run: Run, callback: Any) -> str:
    """The name of a timer that is created now, or '' for one that is not the agent's."""
    if current_crossing(run.root_lane) is not None or is_plumbing(run):
        return ""
    lane, label = current_lane(run.root_lane), label_of_callback(callback)
    name = f"{lane.path}|{label}|{lane.next_index(f'timer {label}')}"
    run.order.begin(name)
    return name


def label_of_callback(callback: Any) -> str:
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))[:LABEL_CHARACTERS_MAX]


def guarded_name(run: Run, callback: Any) -> str:
    """`name_timer`, or '' if that fails."""
    return guard.guarded("naming a timer", name_timer, run, callback) or ""
