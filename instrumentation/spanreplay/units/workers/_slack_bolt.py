"""Unit: Slack Bolt in socket mode. Each event that an app receives is its own run, until its listeners are done.

An `App` acknowledges an event at once and works on it in pool threads, an `AsyncApp` in tasks, so the unit ends with
the last of them. Over HTTP an event is part of its request, whose unit ends with them too. In a replay nothing is
connected: where the app would connect, it gets the recorded event.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
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
    replay_jobs_async,
)
from spanreplay.units.under_way import UnderWay, open_under_way
from spanreplay.units.unit_run import UnitRun

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches
    from spanreplay.runtime.run import Run

_current: Final[contextvars.ContextVar[_Event | None]] = contextvars.ContextVar("spanreplay_slack_bolt", default=None)
"""The event dispatched in this context."""
_events: Final[weakref.WeakKeyDictionary[Any, _Event]] = weakref.WeakKeyDictionary()
"""Request → its event; needed because listeners are called in other threads."""


def install(module: Any, patches: Patches) -> None:
    """Patch one of Bolt's modules."""
    match module.__name__.removeprefix("slack_bolt."):
        case "app.app":
            patches.wrap(module.App, "dispatch", _dispatch)
        case "app.async_app":
            patches.wrap(module.AsyncApp, "async_dispatch", _dispatch_async)
        case "adapter.socket_mode.base_handler":
            patches.wrap(module.BaseSocketModeHandler, "connect", _connect)
        case "adapter.socket_mode.async_base_handler":
            patches.wrap(module.AsyncBaseSocketModeHandler, "connect_async", _connect_async)
        case "listener.custom_listener":
            patches.wrap(module.CustomListener, "run_ack_function", _listen)
        case "listener.async_listener":
            patches.wrap(module.AsyncCustomListener, "run_ack_function", _listen_async)
        case "lazy_listener.thread_runner":
            patches.wrap(module.ThreadLazyListenerRunner, "__init__", _make_runner)
        case "listener.thread_runner":
            patches.wrap(module.ThreadListenerRunner, "__init__", _make_runner)
        case _:  # the runners of an AsyncApp, whose tasks are local to their functions
            patches.replace(module, "asyncio", _FollowedTasks())


# ── recording ───────────────────────────────────────────────────────────────────────────────────────
class _Event:
    """One event, from its dispatch to the end of its last listener. Thread-safe."""

    def __init__(self, unit: UnderWay | None) -> None:
        self.unit = unit
        self._under_way = 1
        self._lock = make_lock()
        self.response: Any = None
        self.raised: list[BaseException] = []
        """Exceptions of listeners, which Bolt passes to an error handler."""
        self.works: list[Any] = []

    def follow(self, work: Future[Any] | asyncio.Future[Any]) -> None:
        """Keep the event open until a pool's future, or a task, is done."""
        with self._lock:
            self._under_way += 1
            self.works.append(work)
        work.add_done_callback(lambda _: self.leave())

    def leave(self) -> None:
        """Note that the dispatch, or work that it started, is over."""
        with self._lock:
            self._under_way -= 1
            is_over = not self._under_way
        if is_over and self.unit is not None:
            guard.guarded("a unit", self._end, self.unit)

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
    event = _open(request)
    if event is None:
        return wrapped(*args, **kwargs)
    with _received(event, request):
        event.response = wrapped(*args, **kwargs)
        return event.response


async def _dispatch_async(wrapped: Any, app: Any, args: Any, kwargs: Any) -> Any:
    request = args[0] if args else kwargs["req"]
    event = _open(request)
    if event is None:
        return await wrapped(*args, **kwargs)
    with _received(event, request):
        event.response = await wrapped(*args, **kwargs)
        return event.response


def _open(request: Any) -> _Event | None:
    """Open the unit of an event; None if it is part of a request, or of a unit."""
    if request.mode != "socket_mode" or is_replay():
        return None
    name, user, session = guard.guarded("an event", _name_event, request.body) or ("", "", "")
    unit = open_under_way(name, user, session)
    return None if unit is None else _Event(unit)


@contextmanager
def _received(event: _Event, request: Any) -> Iterator[None]:
    """A block that dispatches an event of a unit."""
    unit = event.unit
    if unit is None:
        raise AssertionError("a recorded event has a unit")
    with factory.inside_unit(unit.run):
        unit.note(lambda: note_input(_describe_input(request)))
        with _watched(event, request):
            yield


@contextmanager
def _watched(event: _Event, request: Any) -> Iterator[None]:
    """A block that dispatches an event, and follows the work started for it."""
    _events[request] = event
    token = set_variable(_current, event)
    try:
        yield
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
        guard.guarded("a listener", _follow, event, run, work)
        return work

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


class _FollowedTasks:
    """What an AsyncApp knows as `asyncio`; the tasks of listeners belong to the event that they were started for."""

    def ensure_future(self, work: Any, **options: Any) -> Any:
        """Start a task."""
        event, run = _current.get(), active_run()
        task = asyncio.ensure_future(work, **options)
        guard.guarded("a listener", _follow, event, run, task)
        return task

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)


def _follow(event: _Event | None, run: Run | None, work: Any) -> None:
    if event is not None:
        event.follow(work)
    elif isinstance(run, UnitRun):
        _hold(run, work)


def _hold(run: UnitRun, work: Any) -> None:
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


async def _listen_async(wrapped: Any, listener: Any, args: Any, kwargs: Any) -> Any:
    event = _events.get(kwargs.get("request"))
    try:
        return await wrapped(*args, **kwargs)
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


async def _connect_async(wrapped: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    if is_replay():
        await replay_jobs_async(partial(_work_async, handler.app), _describe_end)
    guard.guarded("the start of an app", factory.begin_units)
    return await wrapped(*args, **kwargs)


def _work(app: Any, given: Mapping[str, Any]) -> _Event:
    from slack_bolt.request import BoltRequest

    event = _Event(None)
    request = BoltRequest(mode="socket_mode", body=given["body"], headers=given["headers"])
    with _watched(event, request):
        event.response = app.dispatch(request)
    wait(event.works)
    return event


async def _work_async(app: Any, given: Mapping[str, Any]) -> _Event:
    if not hasattr(app, "async_dispatch"):  # an App may have an asynchronous client
        return _work(app, given)
    from slack_bolt.request.async_request import AsyncBoltRequest

    event = _Event(None)
    request = AsyncBoltRequest(mode="socket_mode", body=given["body"], headers=given["headers"])
    with _watched(event, request):
        event.response = await app.async_dispatch(request)
    while left := [work for work in event.works if not work.done()]:
        await asyncio.wait(left)
    return event
