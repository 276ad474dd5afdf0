"""Unit: Slack Bolt in socket mode. Each event that an app receives is its own run, until its listeners are done.

An app acknowledges an event at once and works on it in pool threads, so the unit ends with the last of them. Over HTTP
an event is part of its request, whose unit ends with them too. In a replay nothing is connected: where the app would
connect, it gets the recorded event.
"""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Outcome
from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.run import active_run
from spanreplay.units import factory
from spanreplay.units.jobs import (
    Ended,
    describe_exception,
    is_replay,
    keep_encodable,
    note_input,
    note_output,
    replay_job,
)
from spanreplay.units.under_way import UnderWay, open_under_way
from spanreplay.units.unit_run import UnitRun

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_current: Final[contextvars.ContextVar[_Event | None]] = contextvars.ContextVar("spanreplay_slack_bolt", default=None)
"""The event dispatched in this context."""
_events: Final[weakref.WeakKeyDictionary[Any, _Event]] = weakref.WeakKeyDictionary()
"""Request → its event; needed because listeners are called in other threads."""


def install(module: Any, patches: Patches) -> None:
    """Patch one of Bolt's modules."""
    if module.__name__ == "slack_bolt.app.app":
        patches.wrap(module.App, "dispatch", _dispatch)
    elif module.__name__ == "slack_bolt.adapter.socket_mode.base_handler":
        patches.wrap(module.BaseSocketModeHandler, "connect", _connect)
    elif module.__name__ == "slack_bolt.listener.custom_listener":
        patches.wrap(module.CustomListener, "run_ack_function", _listen)
    elif module.__name__ == "slack_bolt.lazy_listener.thread_runner":
        patches.wrap(module.ThreadLazyListenerRunner, "__init__", _make_runner)
    else:
        patches.wrap(module.ThreadListenerRunner, "__init__", _make_runner)


# ── recording ───────────────────────────────────────────────────────────────────────────────────────
class _Event:
    """One event, from its dispatch to the end of its last listener. Thread-safe."""

    def __init__(self, unit: UnderWay | None) -> None:
        self._unit = unit
        self._under_way = 1
        self._lock = make_lock()
        self.response: Any = None
        self.raised: list[BaseException] = []
        """Exceptions of listeners, which Bolt passes to an error handler."""
        self.works: list[Future[Any]] = []

    def follow(self, work: Future[Any]) -> None:
        """Keep the event open until a pool's future is done."""
        with self._lock:
            self._under_way += 1
            self.works.append(work)
        work.add_done_callback(lambda _: self.leave())

    def leave(self) -> None:
        """Note that the dispatch, or work that it started, is over."""
        with self._lock:
            self._under_way -= 1
            is_over = not self._under_way
        if is_over and self._unit is not None:
            guard.guarded("a unit", self._end, self._unit)

    def _end(self, unit: UnderWay) -> None:
        ended = _describe_end(self)
        with factory.inside_unit(unit.run):
            unit.note(lambda: note_output(ended.output))
        unit.run.end(ended.outcome)


def _describe_end(event: _Event) -> Ended:
    response = event.response
    told: dict[str, Any] = {
        "response": None if response is None else {"status": response.status, "body": response.body}
    }
    if event.raised:
        told["raised"] = [describe_exception(exc) for exc in event.raised]
    return Ended(told, Outcome.ERROR if event.raised else Outcome.OK)


def _dispatch(wrapped: Any, app: Any, args: Any, kwargs: Any) -> Any:
    request = args[0] if args else kwargs["req"]
    if request.mode != "socket_mode" or is_replay():
        return wrapped(*args, **kwargs)
    name, user, session = guard.guarded("an event", _name_event, request.body) or ("", "", "")
    unit = open_under_way(name, user, session)
    if unit is None:
        return wrapped(*args, **kwargs)
    event = _Event(unit)
    with factory.inside_unit(unit.run):
        unit.note(lambda: note_input(_describe_input(request)))
        return _watch(event, request, lambda: wrapped(*args, **kwargs))


def _watch(event: _Event, request: Any, dispatch: Callable[[], Any]) -> Any:
    """Dispatch an event, and follow the work started for it."""
    _events[request] = event
    token = set_variable(_current, event)
    try:
        event.response = dispatch()
        return event.response
    except BaseException as exc:
        event.raised.append(exc)
        raise
    finally:
        reset_variable(_current, token)
        event.leave()


def _describe_input(request: Any) -> dict[str, Any]:
    return keep_encodable({"body": request.raw_body or request.body, "headers": dict(request.headers)})


def _name_event(body: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return an event's name, user and conversation."""
    inner = body.get("event")
    event: Mapping[str, Any] = inner if isinstance(inner, Mapping) else body
    user = event.get("user") or event.get("user_id") or ""
    user = user.get("id", "") if isinstance(user, Mapping) else user
    session = event.get("thread_ts") or event.get("channel") or event.get("channel_id") or ""
    session = session.get("id", "") if isinstance(session, Mapping) else session
    return str(event.get("command") or event.get("type") or "event"), str(user), str(session)


# ── work started by an event ────────────────────────────────────────────────────────────────────────
class _Followed:
    """An app's pool, whose work belongs to the event that it was started for."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Submit work to the pool."""
        event, run = _current.get(), active_run()
        work = self._pool.submit(*args, **kwargs)
        if event is not None:
            guard.guarded("a listener", event.follow, work)
        elif isinstance(run, UnitRun):
            guard.guarded("a listener", _hold, run, work)
        return work

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


def _hold(run: UnitRun, work: Future[Any]) -> None:
    """Keep a request's run open for its listeners, which may finish after its response."""
    run.hold()
    work.add_done_callback(lambda _: run.release())


def _make_runner(wrapped: Any, runner: Any, args: Any, kwargs: Any) -> Any:
    made = wrapped(*args, **kwargs)
    for name in ("listener_executor", "executor"):
        if hasattr(runner, name):
            setattr(runner, name, _Followed(getattr(runner, name)))
    return made


def _listen(wrapped: Any, listener: Any, args: Any, kwargs: Any) -> Any:
    """Call a listener, and note an exception before Bolt passes it to an error handler."""
    event = _events.get(kwargs.get("request"))
    try:
        return wrapped(*args, **kwargs)
    except BaseException as exc:
        if event is not None:
            event.raised.append(exc)
        raise


# ── the connection ──────────────────────────────────────────────────────────────────────────────────
def _connect(wrapped: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    """The app has started: a replay now runs the recorded event."""
    if is_replay():
        replay_job(lambda given: _work(handler.app, given), _describe_end)
    guard.guarded("the start of an app", factory.begin_units)
    return wrapped(*args, **kwargs)


def _work(app: Any, given: Mapping[str, Any]) -> _Event:
    from slack_bolt.request import BoltRequest

    event = _Event(None)
    request = BoltRequest(mode="socket_mode", body=given["body"], headers=given["headers"])
    _watch(event, request, lambda: app.dispatch(request))
    wait(event.works)
    return event
