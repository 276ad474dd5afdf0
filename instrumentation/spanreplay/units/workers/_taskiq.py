"""Unit: taskiq. Each task that a worker receives is its own run, with the broker's middleware.

In a replay no process is started and no broker is used: this process acts as one of the worker's processes, and where
it would ask for messages it gets the recorded one.
"""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import wrapt

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind, Outcome
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.runtime.calls.open_call import no_plumbing, plumbing
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.run import active_run
from spanreplay.units import factory
from spanreplay.units.jobs import (
    Ended,
    describe_exception,
    is_replay,
    keep_encodable,
    not_here,
    record_job_async,
    replay_jobs_async,
)

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_ACKABLE: Final = "ackable"
_DRAWN: Final = frozenset({"task_id", "schedule_id", "labels_types"})
"""Values generated when a task is published; they differ each time."""
_LOCAL: Final = frozenset({"InMemoryBroker", "AsyncSharedBroker"})
"""Brokers that run tasks in the publishing process, or pass them to another broker."""
_RESULT, _ERROR = "result", "error"
_received: Final[contextvars.ContextVar[dict[str, Any] | None]] = contextvars.ContextVar(
    "spanreplay_taskiq", default=None
)
"""How the task being worked on in this context ended."""
_workers: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""Receivers of workers; a broker in memory has one of its own, whose tasks belong to whoever publishes them."""


def install(module: Any, patches: Patches) -> None:
    """Patch one of taskiq's modules."""
    if module.__name__ == "taskiq.cli.worker.process_manager":
        patches.wrap(module.ProcessManager, "start", _main)
    elif module.__name__ == "taskiq.abc.broker":
        patches.wrap(module.AsyncBroker, "__init__", _make_broker)
        patches.wrap(module.AsyncBroker, "startup", _start_program)
    elif module.__name__ == "taskiq.kicker":
        for name in ("schedule_by_cron", "schedule_by_interval", "schedule_by_time"):
            if hasattr(module.AsyncKicker, name):
                patches.wrap(module.AsyncKicker, name, _schedule)
    else:
        patches.wrap(module.Receiver, "listen", _listen)
        patches.wrap(module.Receiver, "prefetcher", _prefetch)
        patches.wrap(module.Receiver, "callback", _receive)
        patches.wrap(module.Receiver, "run_task", _run_task)
        patches.wrap(module, "TaskiqResult", _make_result)


# ── recording ───────────────────────────────────────────────────────────────────────────────────────
async def _receive(wrapped: Any, receiver: Any, args: Any, kwargs: Any) -> Any:
    message = args[0] if args else kwargs.get("message")
    parsed = None if is_replay() or receiver not in _workers else guard.guarded("a message", _parse, receiver, message)
    if parsed is None:  # the worker says so
        return await wrapped(*args, **kwargs)
    given = guard.guarded("a message", _leave_ack_to_worker, message) or message
    kwargs = {name: value for name, value in kwargs.items() if name != "message"}
    await record_job_async(
        parsed.task_name,
        lambda: {**parsed.model_dump(), _ACKABLE: hasattr(message, "ack")},
        lambda: _watch(lambda: wrapped(given, *args[1:], **kwargs)),
        _describe_end,
        parsed.labels,
    )
    return None


def _parse(receiver: Any, message: Any) -> Any:
    """Return a message as the receiver reads it; None if there is no task for it."""
    found = receiver.broker.formatter.loads(message=getattr(message, "data", message))
    return None if receiver.broker.find_task(found.task_name) is None else found


def _leave_ack_to_worker(message: Any) -> Any:
    """Return a message whose acknowledgement is the worker's work, not the task's."""
    return message.model_copy(update={"ack": _apart(message.ack)}) if hasattr(message, "ack") else message


def _apart(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the worker's own: not part of the task, and left out in a replay."""

    async def leave(*args: Any, **kwargs: Any) -> Any:
        if is_replay():
            return None
        with factory.outside_units(), plumbing():
            done = work(*args, **kwargs)
            return await done if isinstance(done, Awaitable) else done

    return leave


async def _watch(work: Callable[[], Awaitable[object]]) -> dict[str, Any]:
    """Work on a message; return how its task ended."""
    told: dict[str, Any] = {}
    token = set_variable(_received, told)
    try:
        await work()
    finally:
        reset_variable(_received, token)
    return told


async def _run_task(wrapped: Any, receiver: Any, args: Any, kwargs: Any) -> Any:
    result = await wrapped(*args, **kwargs)
    told = _received.get()
    if told is not None:
        told[_RESULT] = result
    return result


def _make_result(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Note the exception of the task itself: middleware that retries replaces it in the result."""
    told = _received.get()
    if told is not None and kwargs.get(_ERROR) is not None:
        told[_ERROR] = kwargs[_ERROR]
    return wrapped(*args, **kwargs)


def _describe_end(told: Mapping[str, Any]) -> Ended:
    """Describe the result, or the exception and whether middleware has replaced it, as for a retry."""
    result, error = told.get(_RESULT), told.get(_ERROR)
    if error is None:
        return Ended({"result": None if result is None else result.return_value})
    is_replaced = result is not None and result.error is not error
    return Ended({"raised": describe_exception(error), "replaced": is_replaced}, Outcome.ERROR)


# ── published tasks ─────────────────────────────────────────────────────────────────────────────────
def _make_broker(wrapped: Any, broker: Any, args: Any, kwargs: Any) -> Any:
    """Wrap `kick` and `startup` on the instance, because every broker class has its own."""
    made = wrapped(*args, **kwargs)
    if not _LOCAL.intersection(each.__name__ for each in type(broker).__mro__):
        guard.guarded("a broker", _take_broker, broker)
    return made


def _take_broker(broker: Any) -> None:
    broker.kick = wrapt.FunctionWrapper(broker.kick, _publish)
    broker.startup = wrapt.FunctionWrapper(broker.startup, _start)


async def _publish(wrapped: Any, broker: Any, args: Any, kwargs: Any) -> Any:
    """Record publishing a task as a write: a replay compares it and sends nothing."""
    if active_run() is None:
        return await wrapped(*args, **kwargs)
    message = args[0] if args else kwargs.get("message")

    async def publish() -> None:
        await wrapped(*args, **kwargs)

    def describe() -> FunctionCall:
        return _describe_published("taskiq.kick", broker.formatter.loads(message.message))

    return await call_async(describe, publish)


def _describe_published(name: str, published: Any) -> FunctionCall:
    told = {member: value for member, value in published.model_dump().items() if member not in _DRAWN}
    return FunctionCall(Kind.TOOL.value, name, Effect.WRITE.value, keep_encodable(told), prints=False)


class _Source(wrapt.ObjectProxy):  # type: ignore[type-arg]  # generic only in newer stubs of wrapt
    """A source of schedules whose additions are recorded."""

    async def add_schedule(self, schedule: Any) -> None:
        """Record adding a schedule as a write: a replay compares it and adds nothing."""

        async def add() -> None:
            await self.__wrapped__.add_schedule(schedule)

        await call_async(lambda: _describe_published("taskiq.add_schedule", schedule), add)


async def _schedule(wrapped: Any, kicker: Any, args: Any, kwargs: Any) -> Any:
    if active_run() is None:
        return await wrapped(*args, **kwargs)
    if args:
        args = (_Source(args[0]), *args[1:])
    else:
        kwargs = {**kwargs, "source": _Source(kwargs["source"])}
    return await wrapped(*args, **kwargs)


# ── the worker ──────────────────────────────────────────────────────────────────────────────────────
def _main(wrapped: Any, manager: Any, args: Any, kwargs: Any) -> Any:
    """In a replay, run one of the worker's processes in this process."""
    return manager.worker_function(manager.args) if is_replay() else wrapped(*args, **kwargs)


async def _listen(wrapped: Any, receiver: Any, args: Any, kwargs: Any) -> Any:
    guard.guarded("a worker", _take, receiver)
    return await wrapped(*args, **kwargs)


def _take(receiver: Any) -> None:
    """Separate a worker's own work from its program's: storing results."""
    broker = receiver.broker
    _workers.add(receiver)
    for name in ("startup", "set_result"):
        setattr(broker.result_backend, name, _apart(getattr(broker.result_backend, name)))
    progress = broker.result_backend.set_progress
    broker.result_backend.set_progress = wrapt.FunctionWrapper(progress, _set_progress)


async def _start(wrapped: Any, broker: Any, args: Any, kwargs: Any) -> Any:
    """Start a broker; in a replay without its connection, so that only the program's own handlers run."""
    if is_replay():
        from taskiq.abc.broker import AsyncBroker

        return await AsyncBroker.startup(broker)
    with plumbing():
        return await wrapped(*args, **kwargs)


async def _start_program(wrapped: Any, broker: Any, args: Any, kwargs: Any) -> Any:
    with no_plumbing():
        return await wrapped(*args, **kwargs)


async def _set_progress(wrapped: Any, backend: Any, args: Any, kwargs: Any) -> Any:
    """Record progress that a task reports about itself."""
    if active_run() is None:
        return await wrapped(*args, **kwargs)
    progress = args[1] if len(args) > 1 else kwargs.get("progress")

    async def report() -> None:
        await wrapped(*args, **kwargs)

    def describe() -> FunctionCall:
        told = keep_encodable(progress.model_dump())
        return FunctionCall(Kind.TOOL.value, "taskiq.set_progress", Effect.WRITE.value, told, prints=False)

    return await call_async(describe, report)


async def _prefetch(wrapped: Any, receiver: Any, args: Any, kwargs: Any) -> Any:
    """The worker has started: a replay now runs the recorded task."""
    if is_replay():
        await replay_jobs_async(lambda given: _work(receiver, given), _describe_end)
    guard.guarded("a worker", factory.offer_in_member)
    guard.guarded("the start of a worker", factory.begin_units)
    with plumbing():
        return await wrapped(*args, **kwargs)


async def _work(receiver: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    from taskiq.acks import AckableMessage
    from taskiq.message import TaskiqMessage

    name = given["task_name"]
    if receiver.broker.find_task(name) is None:
        raise not_here(f"the task {name!r} is not registered with this broker")
    message = TaskiqMessage(**{member: value for member, value in given.items() if member != _ACKABLE})
    content = receiver.broker.formatter.dumps(message).message
    if given[_ACKABLE]:
        content = AckableMessage(data=content, ack=_apart(lambda: None))
    return await _watch(lambda: receiver.callback(content))
