"""What a call's body passes on beside its result: items of queues from which other code of the agent takes them.

A tool that streams its progress, or the words of a model that it asks, puts them into a queue which the framework or
the agent made before and reads elsewhere. A replay does not run the body, so the items are kept with the call, as its
printed output is (`printed`), and put into the same queue again: the one that has the same name.

In a call's meta they are rows of `printed` with a fifth member: the queue's name, how the item came (`PUT` and its
like), and the item.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from spanreplay import codec
from spanreplay.model.errors import Unserializable
from spanreplay.model.json_text import dump
from spanreplay.model.lane_names import UNIT_LANE
from spanreplay.runtime.caller.caller import AGENT, LIBRARY, is_ours, origin_of
from spanreplay.runtime.calls.spec import Printed
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.lanes import current_crossing, current_lane, inside_call, is_inside
from spanreplay.runtime.process import late_items
from spanreplay.runtime.run import active_run

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

__all__ = [
    "BATCH",
    "HEARD",
    "MESSAGE",
    "SOON",
    "giving",
    "keep",
    "name_queue",
    "note",
    "note_taken",
    "put",
    "put_late",
    "was_noted",
]

PUT, SOON, BATCH, MESSAGE, HEARD = "put", "soon", "batch", "message", "heard"
"""How an item came: put by the body itself; by a callback that it handed to the event loop; as changes of a store; as
a message of the server that the call asks, which has no queue, and whose handlers ended before the call or not."""
_MESSAGES: Final = (MESSAGE, HEARD)
repeaters: Final[dict[str, Callable[[Any], Any]]] = {}
"""What a body does besides → does it again, in the context in which the call is served."""
_names: Final[WeakKeyDictionary[Any, tuple[str, str]]] = WeakKeyDictionary()
"""Queue or store → its name, and the run that made it; '' if a body takes from it."""
_queues: Final[WeakValueDictionary[str, Any]] = WeakValueDictionary()
_UNNAMED: Final = ("", "")
_give: Final[contextvars.ContextVar[Any]] = contextvars.ContextVar("spanreplay_give", default=None)
_handed: Final[contextvars.ContextVar[Any]] = contextvars.ContextVar("spanreplay_handed_item", default=None)
"""A tuple of the item that a callback puts, which was noted when it was handed over."""


def name_queue(queue: Any, frame: FrameType) -> None:
    """Name a queue or a store that the agent, or a library for it, makes in this frame, outside of calls."""
    run, maker = active_run(), frame
    while is_ours(maker.f_code.co_filename) and maker.f_back is not None:  # what keeps the order of queues
        maker = maker.f_back
    if run is None or origin_of(maker) not in (AGENT, LIBRARY):
        return
    lane = current_lane(run.root_lane)
    if is_inside(lane) or current_crossing(run.root_lane) is not None:
        return
    label = f"{maker.f_globals.get('__name__', '')}.{maker.f_code.co_name}"
    name = f"{lane.path}|{label}#{lane.next_index(f'|{label}')}"
    _names[queue] = name, run.run_id
    _queues[name] = queue


def note(queue: Any, item: Any, how: str = PUT) -> bool:
    """Note that an item is about to be put into a queue; return whether the calls around have kept it."""
    run, (name, owner), handed = active_run(), _names.get(queue, _UNNAMED), _handed.get()
    if not name or run is None or (handed is not None and handed[0] is item):
        return False
    if name.startswith(UNIT_LANE) and owner != run.run_id:  # units that run at the same time have the same lanes
        return False
    return _keep_around(run, name, how, item)


def note_done(how: str, item: Any) -> None:
    """Note that a body does something which `repeaters` names."""
    run = active_run()
    if run is not None:
        _keep_around(run, "", how, item)


def _keep_around(run: Run, name: str, how: str, item: Any) -> bool:
    """Keep an item with all calls around the running code; return whether that was possible."""
    crossing, keepers = current_crossing(run.root_lane), []
    while crossing is not None:
        spec = getattr(crossing, "spec", None)
        if spec is not None and spec.prints and crossing.served is None:
            keepers.append(crossing)
        crossing = getattr(crossing, "parent", None)
    kept = [keep(run, crossing, name, how, item) for crossing in keepers]
    return bool(kept) and all(kept)


def keep(run: Run, crossing: Any, name: str, how: str, item: Any) -> list[Any] | None:
    """Keep an item with a call; return its row, which may change until the call is written, or None."""
    row = _encode(name, how, item)
    if row is None:
        run.count("unpassed")
        return None
    if crossing.is_closing:
        late_items.note(run, crossing, row)
        return row
    if crossing.spec.printed is None:
        crossing.spec.printed = Printed()
    crossing.spec.printed.add_item(crossing, row, len(dump(row)))
    return row


class giving:  # noqa: N801 -- reads as a statement: `with giving(give):`
    """A block whose calls have their recorded messages given by a coroutine function."""

    def __init__(self, give: Callable[..., Coroutine[Any, Any, None]]) -> None:
        self._give = give

    def __enter__(self) -> None:
        self._token = set_variable(_give, self._give)

    def __exit__(self, *exc_info: object) -> None:
        reset_variable(_give, self._token)


def note_taken(queue: Any) -> None:
    """Note that a call's body takes from a queue: what it puts there is its own, such as a connection of a pool."""
    if queue in _names:
        _names[queue] = _UNNAMED


def _encode(name: str, how: str, item: Any) -> list[Any] | None:
    try:
        return [name, how, codec.encode(item)]
    except Unserializable:
        return None


def was_noted(item: Any) -> contextvars.Context:
    """Return a Context for the callback that puts an item which has been noted."""
    context = contextvars.copy_context()
    context.run(set_variable, _handed, (item,))
    return context


def put_late(crossing: Any) -> Iterator[Coroutine[Any, Any, None]]:
    """Have the items put that came after the end of a call that is served, now that it ends; yield what to wait for."""
    for row in late_items.items_of(crossing):
        waiting = put(crossing, [row[0], row[1] if row[1] in _MESSAGES else SOON, row[-1]])
        if waiting is not None:
            yield waiting


def put(crossing: Any, row: list[Any]) -> Coroutine[Any, Any, None] | None:
    """Put a recorded item into its queue again, if that is here; return what to wait for if it is full.

    Raises: ReplayMiss if the item can't be rebuilt.
    """
    is_message, repeat = row[1] in _MESSAGES, repeaters.get(row[1])
    taker: Any = repeat or (_give.get() if is_message else _queues.get(row[0]))
    if taker is None:
        return None
    try:
        item = codec.decode(row[-1])
    except Exception as exc:
        why = crossing.run.redactor.text(str(exc))  # it may mention a value that the recording hides
        raise crossing.answers.type_changed(crossing, "printed", why) from exc
    if repeat is not None:
        repeat(item)
        return None
    if is_message:
        waiting: Coroutine[Any, Any, None] = taker(item, is_heard=row[1] == HEARD)
        return waiting
    with inside_call(crossing):
        return _put(taker, row[1], item)


def _put(queue: Any, how: str, item: Any) -> Coroutine[Any, Any, None] | None:
    """Put an item into a queue or a store; return what to wait for if it is full."""
    if how == BATCH:
        queue.batch(item)
        return None
    if not isinstance(queue, asyncio.Queue):
        queue.put(item)
        return None
    running = asyncio._get_running_loop()
    loop = getattr(queue, "_loop", None) or running
    if loop is not None and (how == SOON or loop is not running):
        loop.call_soon_threadsafe(queue.put_nowait, item)
    elif running is not None and queue.full():
        waiting: Coroutine[Any, Any, None] = queue.put(item)
        return waiting
    else:
        queue.put_nowait(item)
    return None
