"""What a call's body passes on beside its result: items of queues from which other code of the agent takes them.

A tool that streams its progress, or the words of a model that it asks, puts them into a queue which the framework or
the agent made before and reads elsewhere. A replay does not run the body, so the items are kept with the call, as its
printed output is (`printed`), and put into the same queue again: the one that has the same name.

In a call's meta they are rows of `printed` with a fifth member: the queue's name, how the item came (`HOW`), the item.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from types import FrameType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from spanreplay import codec
from spanreplay.model.errors import Unserializable
from spanreplay.model.json_text import dump
from spanreplay.model.lane_names import UNIT_LANE
from spanreplay.runtime.caller.caller import AGENT, LIBRARY, origin_of
from spanreplay.runtime.calls.spec import Printed
from spanreplay.runtime.context_variables import set_variable
from spanreplay.runtime.lanes import current_crossing, current_lane, inside_call, is_inside
from spanreplay.runtime.run import active_run

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

__all__ = ["name_queue", "note", "note_taken", "put", "was_noted"]

PUT, SOON = "put", "soon"
"""How an item came: put by the body itself, or by a callback that it handed to the event loop."""
_NAME: Final = "_spanreplay_name"
_OWNER: Final = "_spanreplay_run"
_UNIT: Final = f"{UNIT_LANE}|"
_queues: Final[WeakValueDictionary[str, Any]] = WeakValueDictionary()
_handed: Final[contextvars.ContextVar[Any]] = contextvars.ContextVar("spanreplay_handed_item", default=None)
"""The item that a callback puts, which was noted when it was handed over."""


def name_queue(queue: Any, frame: FrameType) -> None:
    """Name a queue that the agent, or a library for it, makes in this frame, outside of calls."""
    run = active_run()
    if run is None or origin_of(frame) not in (AGENT, LIBRARY):
        return
    lane = current_lane(run.root_lane)
    if is_inside(lane) or current_crossing(run.root_lane) is not None:
        return
    label = f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_name}"
    name = f"{lane.path}|{label}#{lane.next_index(f'|{label}')}"
    setattr(queue, _NAME, name)
    setattr(queue, _OWNER, run.run_id)
    _queues[name] = queue


def note(queue: Any, item: Any, how: str = PUT) -> bool:
    """Note that an item is about to be put into a queue; return whether the calls around have kept it."""
    name, run = getattr(queue, _NAME, ""), active_run()
    if not name or run is None or _handed.get() is item is not None or not _is_reached(run, name, queue):
        return False
    crossing = current_crossing(run.root_lane)
    row: list[Any] | None = None
    while crossing is not None:
        spec = getattr(crossing, "spec", None)
        if spec is not None and spec.prints and crossing.served is None and not crossing.is_closing:
            row = row or _encode(name, how, item)
            if row is None:
                run.count("unpassed")
                return False
            if spec.printed is None:
                spec.printed = Printed()
            spec.printed.add_item(crossing, row, len(dump(row)))
        crossing = getattr(crossing, "parent", None)
    return row is not None


def note_taken(queue: Any) -> None:
    """Note that a call's body takes from a queue: what it puts there is its own, such as a connection of a pool."""
    if getattr(queue, _NAME, ""):
        setattr(queue, _NAME, "")


def _is_reached(run: Run, name: str, queue: Any) -> bool:
    """Whether a queue of this name is the run's: units that run at the same time have the same lanes."""
    return not name.startswith(UNIT_LANE) or getattr(queue, _OWNER, "") == run.run_id


def _encode(name: str, how: str, item: Any) -> list[Any] | None:
    try:
        return [name, how, codec.encode(item)]
    except Unserializable:
        return None


def was_noted(item: Any) -> contextvars.Context:
    """Return a Context for the callback that puts an item which has been noted."""
    context = contextvars.copy_context()
    context.run(set_variable, _handed, item)
    return context


def put(crossing: Any, row: list[Any]) -> Coroutine[Any, Any, None] | None:
    """Put a recorded item into its queue again, if that is here; return what to wait for if it is full.

    Raises: ReplayMiss if the item can't be rebuilt.
    """
    queue = _queues.get(row[0])
    if queue is None:
        return None
    try:
        item = codec.decode(row[-1])
    except Exception as exc:
        why = crossing.run.redactor.text(str(exc))  # it may mention a value that the recording hides
        raise crossing.answers.type_changed(crossing, "printed", why) from exc
    with inside_call(crossing):
        if not isinstance(queue, asyncio.Queue):
            queue.put(item)
            return None
        running = asyncio._get_running_loop()
        loop = getattr(queue, "_loop", None) or running
        if loop is not None and (row[1] == SOON or loop is not running):
            loop.call_soon_threadsafe(queue.put_nowait, item)
        elif running is not None and queue.full():
            waiting: Coroutine[Any, Any, None] = queue.put(item)
            return waiting
        else:
            queue.put_nowait(item)
    return None
