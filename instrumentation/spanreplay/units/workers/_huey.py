"""Unit: huey. Each execution of a task is its own run, in a consumer's threads or processes.

In a replay no worker is started and no storage is used: where the consumer would start its workers, it gets the
recorded task.
"""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind, Outcome
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.run import active_run
from spanreplay.units import factory
from spanreplay.units.jobs import (
    Ended,
    describe_exception,
    is_replay,
    make_left_to_worker,
    not_here,
    record_job,
    replay_job,
)

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_OF_WORKER: Final = ("put_result", "delete", "_check_chord")
"""Methods with which a consumer stores data about an executed task."""
_NAME, _ID = "name", "id"
_AFTER: Final = ("on_complete", "on_error")
_GIVEN: Final = (_ID, _NAME, "args", "kwargs", "retries", "retry_delay", "priority", "timeout", *_AFTER)
_TIME: Final = "timestamp"
"""When the execution began."""
_DRAWN: Final = frozenset({_ID})
"""Values generated when a task is published; they differ each time."""
_RESULT, _EXCEPTION, _RETRIED = "result", "exception", "retried"
_executed: Final[contextvars.ContextVar[dict[str, Any] | None]] = contextvars.ContextVar(
    "spanreplay_huey", default=None
)
"""How the task being executed in this context ended."""
_leave_to_worker: Final = make_left_to_worker(_executed)
"""Marks data that the consumer stores about a task as the consumer's work, not the task's."""


def install(module: Any, patches: Patches) -> None:
    """Patch huey's API or its consumer."""
    if module.__name__ == "huey.consumer":
        patches.wrap(module.Consumer, "start", _start)
        patches.wrap(module.Consumer, "flush_locks", _flush)
        return
    patches.wrap(module.Huey, "_execute", _execute)
    patches.wrap(module.Huey, "_run_post_execute", _tell)
    patches.wrap(module.Huey, "_requeue_task", _try_again)
    patches.wrap(module.Huey, "enqueue", _publish)
    for name in _OF_WORKER:
        patches.wrap(module.Huey, name, _leave_to_worker)


# ── recording ───────────────────────────────────────────────────────────────────────────────────────
def _execute(wrapped: Any, huey: Any, args: Any, kwargs: Any) -> Any:
    if is_replay() or huey.immediate:  # immediate: called by the program, as part of the calling code
        return wrapped(*args, **kwargs)
    guard.guarded("a worker", factory.offer_in_member)
    named = {**dict(zip(("task", _TIME), args, strict=False)), **kwargs}
    task = named["task"]
    told: dict[str, Any] = {}

    def work() -> Mapping[str, Any]:
        return _watch(told, wrapped, args, kwargs)

    name = str(huey._registry.task_to_string(type(task)))
    record_job(name, lambda: {**_describe_task(huey, task), _TIME: named[_TIME]}, work, _describe_end)
    return told.get(_RESULT)


def _watch(told: dict[str, Any], execute: Any, args: Any, kwargs: Any) -> Mapping[str, Any]:
    """Execute a task; return what hooks were told about its end."""
    token = set_variable(_executed, told)
    try:
        told[_RESULT] = execute(*args, **kwargs)
    finally:
        reset_variable(_executed, token)
    return told


def _describe_task(huey: Any, task: Any) -> dict[str, Any]:
    return _describe_message(huey._registry.create_message(task))


def _describe_message(message: Any) -> dict[str, Any]:
    """Describe a task and its follow-up tasks."""
    told = {name: getattr(message, name) for name in _GIVEN}
    after = {name: _describe_message(told[name]) for name in _AFTER if told[name] is not None}
    return {**told, **after, "args": list(message.args)}


def _describe_end(told: Mapping[str, Any]) -> Ended:
    exc = told.get(_EXCEPTION)
    if exc is None:
        return Ended({"result": told.get(_RESULT)})
    retry: Any = import_module("huey.exceptions").RetryTask
    described: dict[str, Any] = {"raised": describe_exception(exc), _RETRIED: bool(told.get(_RETRIED))}
    return Ended(described, Outcome.OK if isinstance(exc, retry) and told.get(_RETRIED) else Outcome.ERROR)


def _tell(wrapped: Any, huey: Any, args: Any, kwargs: Any) -> Any:
    named = {**dict(zip(("task", "task_value", _EXCEPTION), args, strict=False)), **kwargs}
    told = _executed.get()
    if told is not None:
        told[_EXCEPTION] = named.get(_EXCEPTION)
    return wrapped(*args, **kwargs)


def _try_again(wrapped: Any, huey: Any, args: Any, kwargs: Any) -> Any:
    """Note that the consumer retries the task."""
    told = _executed.get()
    if told is not None:
        told[_RETRIED] = True
    return _leave_to_worker(wrapped, huey, args, kwargs)


# ── published tasks ─────────────────────────────────────────────────────────────────────────────────
def _publish(wrapped: Any, huey: Any, args: Any, kwargs: Any) -> Any:
    """Record publishing a task as a write: a replay compares it and sends nothing."""
    task = args[0] if args else kwargs["task"]
    is_one = hasattr(task, "revoke_id")  # groups: each member is enqueued separately
    if active_run() is None or huey.immediate or not is_one:
        return wrapped(*args, **kwargs)
    made: list[Any] = []

    def publish() -> str:
        made.append(wrapped(*args, **kwargs))
        return str(task.id)

    task_id = call_sync(lambda: _describe_published(huey, task), publish)
    if made:
        return made[0]
    task.id, task.revoke_id = task_id, f"r:{task_id}"
    results = huey._pipeline_results(task)
    return (
        (results[0] if len(results) == 1 else import_module("huey.api").ResultGroup(results)) if huey.results else None
    )


def _describe_published(huey: Any, task: Any) -> FunctionCall:
    told = _without_drawn(_describe_task(huey, task))
    return FunctionCall(Kind.TOOL.value, "huey.enqueue", Effect.WRITE.value, told, prints=False)


def _without_drawn(task: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in task.items() if name not in _DRAWN}
    return {**kept, **{name: _without_drawn(kept[name]) for name in _AFTER if kept.get(name) is not None}}


# ── the consumer ────────────────────────────────────────────────────────────────────────────────────
def _start(wrapped: Any, consumer: Any, args: Any, kwargs: Any) -> Any:
    """The consumer is about to start its workers: a replay now runs the recorded task."""
    if is_replay():
        replay_job(lambda given: _work(consumer, given), _describe_end)
    guard.guarded("the start of a consumer", factory.begin_units)
    return wrapped(*args, **kwargs)


def _flush(wrapped: Any, consumer: Any, args: Any, kwargs: Any) -> Any:
    """Skip flushing locks in a replay, which has no storage."""
    return None if is_replay() else wrapped(*args, **kwargs)


def _work(consumer: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
    huey = consumer.huey
    try:
        task = huey._registry.create_task(_make_message(given))
    except import_module("huey.exceptions").HueyException as exc:
        raise not_here(f"the task {given[_NAME]!r} is not registered in this application") from exc
    consumer._create_worker().initialize()
    told = _watch({}, huey._execute, (task, given[_TIME]), {})
    if isinstance(told.get(_EXCEPTION), ReplayMiss):
        raise told[_EXCEPTION]
    return told


def _make_message(given: Mapping[str, Any]) -> Any:
    after = {name: _make_message(given[name]) for name in _AFTER if given.get(name) is not None}
    told = {name: value for name, value in given.items() if name != _TIME}
    return import_module("huey.registry").Message(**{**told, **after})
