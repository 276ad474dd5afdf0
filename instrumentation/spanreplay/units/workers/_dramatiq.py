"""Unit: Dramatiq. Each message that a worker processes is its own run, in any process and thread.

In a replay no process is started and no broker is used: this process acts as one of the worker's processes, and where
it would start its threads it gets the recorded message.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from queue import PriorityQueue
from typing import TYPE_CHECKING, Any, Final

import wrapt

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind, Outcome
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.run import active_run
from spanreplay.units import factory
from spanreplay.units.jobs import (
    Ended,
    describe_exception,
    is_replay,
    keep_encodable,
    make_left_to_worker,
    not_here,
    record_job,
    replay_job,
)

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_OPTIONS: Final = "options"
_ID: Final = "message_id"
_TRACE_CONTEXT: Final = "trace_ctx"
"""Message option in which OpenTelemetry's instrumentor for such libraries puts the W3C headers."""
_DRAWN: Final = frozenset(
    {_ID, "message_timestamp", "redis_message_id", "requeue_timestamp", "traceback", "eta", _TRACE_CONTEXT}
)
"""Values generated when a message is published; they differ each time."""
_RESULT, _EXCEPTION, _RETRIED, _FAILED = "result", "exception", "retried", "failed"
_processed: Final[contextvars.ContextVar[dict[str, Any] | None]] = contextvars.ContextVar(
    "spanreplay_dramatiq", default=None
)
"""The id of the message being processed in this context, and how its processing ended."""
_leave_to_worker: Final = make_left_to_worker(_processed)
"""Marks storing results and acknowledging messages as the worker's work, not the actor's."""


def install(module: Any, patches: Patches) -> None:
    """Patch one of Dramatiq's modules."""
    if module.__name__ == "dramatiq.cli":
        patches.wrap(module, "main", _main)
    elif module.__name__ == "dramatiq.broker":
        patches.wrap(module.Broker, "__init__", _make_broker)
        patches.wrap(module.Broker, "emit_before", _tell_before)
        patches.wrap(module.Broker, "emit_after", _tell_after)
    elif module.__name__ == "dramatiq.results.backend":
        for name in ("store_result", "store_exception"):
            patches.wrap(module.ResultBackend, name, _leave_to_worker)
    elif module.__name__ == "dramatiq.middleware.time_limit":
        patches.wrap(module.TimeLimit, "after_process_boot", _watch_time)
    else:
        patches.wrap(module.WorkerThread, "process_message", _process)
        patches.wrap(module.ConsumerThread, "post_process_message", _leave_to_worker)
        patches.wrap(module.ConsumerThread, "handle_delayed_messages", _enqueue_again)


# ── recording ───────────────────────────────────────────────────────────────────────────────────────
def _process(wrapped: Any, thread: Any, args: Any, kwargs: Any) -> Any:
    if is_replay():
        return wrapped(*args, **kwargs)
    message = args[0] if args else kwargs["message"]
    options = message.options
    headers = options.get(_TRACE_CONTEXT)
    record_job(
        message.actor_name,
        lambda: _describe_input(message),
        lambda: _watch(message, lambda: wrapped(*args, **kwargs)),
        _describe_end,
        headers if isinstance(headers, Mapping) else options,
    )
    return None


def _watch(message: Any, process: Callable[[], object]) -> dict[str, Any]:
    """Process a message; return what middleware was told about its end."""
    told: dict[str, Any] = {_ID: message.message_id}
    token = set_variable(_processed, told)
    try:
        process()
    finally:
        reset_variable(_processed, token)
    return told


def _describe_input(message: Any) -> dict[str, Any]:
    given: dict[str, Any] = dict(message.asdict())
    return {**given, _OPTIONS: keep_encodable(given[_OPTIONS])}


def _describe_end(told: Mapping[str, Any]) -> Ended:
    """Describe the result, or the exception, whether it is retried, and the delay it asks for."""
    from dramatiq.errors import Retry

    exc = told.get(_EXCEPTION)
    if exc is None:
        is_failed = bool(told.get(_FAILED))
        output = {"result": told.get(_RESULT), **({_FAILED: True} if is_failed else {})}
        return Ended(output, Outcome.ERROR if is_failed else Outcome.OK)
    described: dict[str, Any] = {"raised": describe_exception(exc), _RETRIED: bool(told.get(_RETRIED))}
    if isinstance(exc, Retry):
        described["delay"] = exc.delay
    return Ended(described, Outcome.OK if isinstance(exc, Retry) and told.get(_RETRIED) else Outcome.ERROR)


def _enqueue_again(wrapped: Any, thread: Any, args: Any, kwargs: Any) -> Any:
    """Enqueue due delayed messages without recording it: they were published earlier."""
    with plumbing():
        return wrapped(*args, **kwargs)


def _watch_time(wrapped: Any, middleware: Any, args: Any, kwargs: Any) -> Any:
    """Start no time limit thread in a replay, because its clock is the recorded one."""
    return None if is_replay() else wrapped(*args, **kwargs)


# ── published messages ──────────────────────────────────────────────────────────────────────────────
def _make_broker(wrapped: Any, broker: Any, args: Any, kwargs: Any) -> Any:
    """Wrap `enqueue` on the instance, because every broker class has its own."""
    made = wrapped(*args, **kwargs)
    guard.guarded("a broker", lambda: setattr(broker, "enqueue", wrapt.FunctionWrapper(broker.enqueue, _publish)))
    return made


def _publish(wrapped: Any, broker: Any, args: Any, kwargs: Any) -> Any:
    """Record publishing a message as a write: a replay compares it and sends nothing."""
    if active_run() is None:
        return wrapped(*args, **kwargs)
    message = args[0] if args else kwargs["message"]
    told = _processed.get()
    if told is not None and message.message_id == told[_ID]:  # a retry of the same message, after a randomised delay
        told[_RETRIED] = True
        return message if is_replay() else _leave_to_worker(wrapped, broker, args, kwargs)
    made: list[Any] = []

    def publish() -> dict[str, Any]:
        made.append(wrapped(*args, **kwargs))
        return {_ID: made[0].message_id, "queue_name": made[0].queue_name, _OPTIONS: keep_encodable(made[0].options)}

    told_of = call_sync(lambda: _describe_published(message, kwargs.get("delay")), publish)
    return made[0] if made else message.copy(**told_of)


def _describe_published(message: Any, delay: Any) -> FunctionCall:
    told = {**_without_drawn(message.asdict()), "delay": delay}
    return FunctionCall(Kind.TOOL.value, "dramatiq.enqueue", Effect.WRITE.value, told, prints=False)


def _without_drawn(value: Any) -> Any:
    """Return a message, and follow-up messages nested in it, without generated values."""
    if isinstance(value, Mapping):
        return {name: _without_drawn(each) for name, each in value.items() if name not in _DRAWN}
    return [_without_drawn(each) for each in value] if isinstance(value, (list, tuple)) else value


# ── the worker ──────────────────────────────────────────────────────────────────────────────────────
class _NoThreads:
    """Replaces, in a replay, the consumers of all queues (nothing is acknowledged) and the list of forks to start."""

    initialized = True

    def __getitem__(self, queue: str) -> _NoThreads:
        return self

    def post_process_message(self, message: Any) -> None:
        """No-op: there is no broker."""


def _main(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """In a replay, run one of the worker's processes in this process."""
    if not is_replay():
        return wrapped(*args, **kwargs)
    cli: Any = import_module("dramatiq.cli")
    options = args[0] if args else kwargs.get("args")
    options = options or cli.make_argument_parser().parse_args()
    for path in options.path:
        sys.path.insert(0, path)
    return cli.worker_process(options, 0, sys.stderr, _NoThreads(), threading.Event())


def _tell_before(wrapped: Any, broker: Any, args: Any, kwargs: Any) -> Any:
    """The worker is about to start its threads: a replay now runs the recorded message."""
    result = wrapped(*args, **kwargs)
    if args and args[0] == "worker_boot":
        if is_replay():
            replay_job(lambda given: _work(broker, given), _describe_end)
        guard.guarded("a worker", factory.offer_in_member)
        guard.guarded("the start of a worker", factory.begin_units)
    return result


def _tell_after(wrapped: Any, broker: Any, args: Any, kwargs: Any) -> Any:
    """Note how a message ended, after every middleware has seen it."""
    result = wrapped(*args, **kwargs)
    told = _processed.get()
    if told is not None and args and args[0] in ("process_message", "skip_message"):
        told |= {**kwargs, _FAILED: args[1].failed}
    return result


def _work(broker: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    from dramatiq.broker import MessageProxy
    from dramatiq.errors import ActorNotFound
    from dramatiq.message import Message

    worker: Any = import_module("dramatiq.worker")
    try:
        broker.get_actor(given["actor_name"])
    except ActorNotFound as exc:
        raise not_here(f"the actor {given['actor_name']!r} is not declared in this application") from exc
    message = MessageProxy(Message(**given))
    thread = worker.WorkerThread(
        broker=broker, consumers=_NoThreads(), work_queue=_queue_of(message), worker_timeout=1000
    )
    told = _watch(message, lambda: thread.process_message(message))
    if isinstance(told.get(_EXCEPTION), ReplayMiss):
        raise told[_EXCEPTION]
    return told


def _queue_of(message: Any) -> PriorityQueue[Any]:
    """Return a queue from which one message was taken, so that the worker can mark it done."""
    queue: PriorityQueue[Any] = PriorityQueue()
    queue.put(message)
    queue.get()
    return queue
