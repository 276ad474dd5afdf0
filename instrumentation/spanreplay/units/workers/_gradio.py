"""Unit: Gradio's queue, which runs an app's functions beside the requests that ask for them.

Each event that the queue processes (a message of a chat, a click, a call of the app's API) is a run of its own: its
input is the event as a request has put it into the queue, its output is the list of messages sent to the browser
(chunks, logs, result or error), without durations. State left by earlier events of a session (`gr.State`) is memory of
the process, as in any server. A request that streams the messages of a session sends the results of other runs, so its
recording is incomplete and says so.
"""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Outcome
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.run import active_run
from spanreplay.units.asgi_messages import build_scope, describe_scope
from spanreplay.units.jobs import Ended, is_replay, not_here, play_job_async, record_job_async
from spanreplay.units.play import plays_jobs
from spanreplay.units.unit_run import UnitRun

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_PART: Final = "Gradio's queue"
_COMPLETED: Final = "process_completed"
_BEFORE: Final = frozenset({"estimation", "process_starts", "heartbeat"})
"""Messages about an event's place in the queue."""
_TIMES: Final = frozenset({"event_id", "eta", "time_limit", "avg_time", "cache_duration"})
_OUTPUT_TIMES: Final = frozenset({"duration", "average_duration"})
_MESSAGES_MAX: Final = 10_000
"""How many messages of an event are compared; later ones are only counted."""
_STREAMED: Final = "this request streams the results of Gradio's events, which are runs of their own"


class _Sent:
    """Collects the messages of the event that is being processed."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.count = 0

    def add(self, message: Any) -> None:
        """Add a message, without its durations."""
        shown = message.model_dump(mode="json", exclude_none=True)
        if shown.get("msg") in _BEFORE:
            return
        self.count += 1
        if len(self.messages) < _MESSAGES_MAX:
            self.messages.append(_without_times(shown))

    def describe(self) -> Ended:
        """The output of the event's run."""
        last = self.messages[-1] if self.messages else {}
        is_error = last.get("msg") == _COMPLETED and not last.get("success", True)
        beyond = self.count - len(self.messages)
        output = {"messages": self.messages, **({"messages_beyond": beyond} if beyond else {})}
        return Ended(output, Outcome.ERROR if is_error else Outcome.OK)


_sent: Final[ContextVar[_Sent | None]] = ContextVar("spanreplay_gradio_sent", default=None)
_is_sending: Final[ContextVar[bool]] = ContextVar("spanreplay_gradio_sending", default=False)
"""Whether a message is being put into its session's queue."""
_queues: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""Every `Queue` of this process: one for each `gr.Blocks`, nested ones included."""
_streaming: Final[weakref.WeakSet[UnitRun]] = weakref.WeakSet()
"""Requests that have read a session's messages."""


def install(module: Any, patches: Patches) -> None:
    """Patch the queue."""
    patches.wrap(module.Queue, "__init__", _note_queue)
    patches.wrap(module.Queue, "process_events", _process)
    patches.wrap(module.Queue, "send_message", _send)
    patches.wrap(module.LRUCache, "__getitem__", _look_at_messages)
    plays_jobs(_play, _STREAMED)


def _note_queue(wrapped: Any, queue: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    guard.guarded(_PART, _queues.add, queue)


def _send(wrapped: Any, queue: Any, args: Any, kwargs: Any) -> Any:
    sent = _sent.get()
    if sent is not None:
        named = {**dict(zip(("event", "event_message"), args, strict=False)), **kwargs}
        if named["event"].alive:
            guard.guarded(_PART, sent.add, named["event_message"])
    token = set_variable(_is_sending, True)
    try:
        return wrapped(*args, **kwargs)
    finally:
        reset_variable(_is_sending, token)


def _is_own_look() -> bool:
    """Whether the queue itself is adding a message."""
    return _is_sending.get() or _sent.get() is not None


def _look_at_messages(wrapped: Any, messages: Any, args: Any, kwargs: Any) -> Any:
    """Mark a request as incomplete when it reads a session's messages, which other runs have produced."""
    run = active_run()
    if not isinstance(run, UnitRun) or not run.resolver.keeps or run in _streaming or _is_own_look():
        return wrapped(*args, **kwargs)
    if any(queue.pending_messages_per_session is messages for queue in _queues):
        _streaming.add(run)
        run.hole(_STREAMED)
    return wrapped(*args, **kwargs)


# ── recording ───────────────────────────────────────────────────────────────────────────────────────
async def _process(wrapped: Any, queue: Any, args: Any, kwargs: Any) -> Any:
    """Process one event, or a batch of them, as a unit."""
    if is_replay():  # the event of another unit, which has its own recording
        return await wrapped(*args, **kwargs) if _sent.get() is not None else None
    named = {**dict(zip(("events", "batch"), args, strict=False)), **kwargs}
    events, sent = named["events"], _Sent()
    first = events[0]

    async def work() -> _Sent:
        token = set_variable(_sent, sent)
        try:
            await wrapped(*args, **kwargs)
        finally:
            reset_variable(_sent, token)
        return sent

    await record_job_async(
        str(guard.guarded(_PART, _name, first) or ""),
        lambda: _describe_input(events, bool(named["batch"])),
        work,
        _Sent.describe,
        guard.guarded(_PART, lambda: dict(first.request.headers)),
        user=str(first.username or ""),
        session=str(first.session_hash or ""),
    )
    return None


def _name(event: Any) -> str:
    return str(event.fn.api_name or event.fn.name)


def _describe_input(events: Sequence[Any], is_batch: bool) -> dict[str, Any]:
    return {"batch": is_batch, "events": [_describe_event(event) for event in events]}


def _describe_event(event: Any) -> dict[str, Any]:
    body = None if event.data is None else event.data.model_dump(mode="json", exclude={"request"})
    told = {"id": event._id, "session": event.session_hash, "username": event.username, "body": body}
    return {**told, "request": describe_scope(event.request.scope)}


def _without_times(message: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in message.items() if name not in _TIMES}
    if isinstance(kept.get("output"), Mapping):
        kept["output"] = {name: value for name, value in kept["output"].items() if name not in _OUTPUT_TIMES}
    return kept


# ── replay ──────────────────────────────────────────────────────────────────────────────────────────
async def _play(lane: str) -> None:
    """Pass the recorded events to the queue of a started app."""
    await play_job_async(lane, _work, _Sent.describe)


async def _work(given: Mapping[str, Any]) -> _Sent:
    queue = _find_queue()
    begin_s = asyncio.get_running_loop().time()
    events = [_build_event(queue, each, begin_s) for each in given["events"]]
    fn, sent = events[0].fn, _Sent()
    queue.create_event_queue_for_fn(fn)
    queue.event_queue_per_concurrency_id[fn.concurrency_id].current_concurrency += 1
    more = (fn,) if "fn" in inspect.signature(queue.process_events).parameters else ()
    token = set_variable(_sent, sent)
    try:
        await queue.process_events(events, given["batch"], begin_s, *more)
    finally:
        reset_variable(_sent, token)
    return sent


def _find_queue() -> Any:
    """Return the queue of the served app; `launch()` may not have connected the two yet. Raises: ReplayMiss."""
    for name in ("server_app", "app"):
        for queue in _queues:
            app = queue.server_app or getattr(queue.blocks, name, None)
            if app is not None:
                queue.set_server_app(app)
                return queue
    raise not_here("no app of Gradio is served any more")


def _build_event(queue: Any, described: Mapping[str, Any], begin_s: float) -> Any:
    from gradio import route_utils
    from gradio.data_classes import PredictBodyInternal
    from gradio.queueing import Event
    from starlette.requests import Request

    body = PredictBodyInternal(**described["body"])
    try:
        fn = route_utils.get_fn(queue.blocks, None, body)
    except KeyError as exc:
        raise not_here(f"the app has no function {body.fn_index} any more") from exc
    request = Request({**build_scope(described["request"], {}), "app": queue.server_app})
    event = Event(described["session"], fn, request, described["username"])
    event._id, event.data = described["id"], body
    told = {"status": "processing", "process_time": None, "function": fn.api_name, "session_hash": event.session_hash}
    queue.event_analytics.setdefault(event._id, {"time": begin_s, **told})
    if event.session_hash not in queue.pending_messages_per_session:
        queue.pending_messages_per_session[event.session_hash] = asyncio.Queue()
    return event
