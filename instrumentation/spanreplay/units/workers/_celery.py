"""Unit: Celery. Each execution of a task is its own run, in any pool.

In a replay the worker starts up to the point where it would start its pool and connect to its broker; then it gets the
recorded task. Results are not stored in any backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind, Outcome
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.run import active_run
from spanreplay.units import caller, factory
from spanreplay.units.jobs import Ended, describe_exception, is_replay, keep_encodable, not_here, record_job, replay_job

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_STORES: Final = ("mark_as_started", "mark_as_done", "mark_as_failure", "mark_as_revoked", "mark_as_retry")
_STORE: Final = "store_result"
_CLEANUP: Final = "process_cleanup"
_HEADERS: Final = "headers"
_OPTIONS: Final = ("countdown", "eta", "expires", "queue", "routing_key", "exchange", "priority", "retries", "shadow")
"""Options of a published task that are compared; its ids differ each time."""
_FURTHER: Final = (
    "link", "link_error", "chord", "chain", "ignore_result", "time_limit", "soft_time_limit", "headers",
    "stamped_headers", "replaced_task_nesting",
)  # fmt: skip
"""Further ones, which are compared if they are set: the tasks that follow, and what the worker is told."""
_DRAWN: Final = frozenset(
    ("id", "task_id", "root_id", "parent_id", "group_id", "reply_to", "traceparent", "tracestate", "baggage")
)
_FAILURE: Final = "FAILURE"
_SUCCESS: Final = "SUCCESS"


def install(module: Any, patches: Patches) -> None:
    """Patch one of Celery's modules."""
    if module.__name__ == "celery.app.trace":
        patches.wrap(module, "build_tracer", _build_tracer)
    elif module.__name__ == "celery.app.base":
        patches.wrap(module.Celery, "send_task", _publish)
    elif module.__name__ == "celery.app.task":
        patches.wrap(module.Task, "update_state", _update)
    elif module.__name__ == "celery.backends.base":
        for name in (*_STORES, _STORE, _CLEANUP):
            patches.wrap(module.Backend, name, _store)
    elif module.__name__ == "celery.backends.rpc":
        patches.wrap(module.RPCBackend, _STORE, _store)
    else:
        patches.wrap(module.WorkController, "start", _start)


# ── recording ───────────────────────────────────────────────────────────────────────────────────────
def _build_tracer(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    trace = wrapped(*args, **kwargs)
    name = args[0] if args else kwargs.get("name")
    if kwargs.get("eager") or not isinstance(name, str):
        return trace  # called eagerly by the program, as part of the calling code

    def trace_unit(uuid: str, task_args: Any, task_kwargs: Any, request: Any = None) -> Any:
        if is_replay():
            return trace(uuid, task_args, task_kwargs, request)
        told = request if isinstance(request, Mapping) else {}
        return record_job(
            name,
            lambda: _describe_input(name, uuid, task_args, task_kwargs, told),
            lambda: trace(uuid, task_args, task_kwargs, request),
            _describe_end,
            _find_headers(told),
        )

    return trace_unit


def _describe_input(name: str, uuid: str, args: Any, kwargs: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    kept = keep_encodable({key: value for key, value in request.items() if key not in ("args", "kwargs")})
    return {"task": name, "id": uuid, "args": args, "kwargs": kwargs, "request": kept}


def _find_headers(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message's headers, which the protocol spreads over the request."""
    nested = request.get(_HEADERS)
    return nested if isinstance(nested, Mapping) and not nested.keys().isdisjoint(caller.find_names()) else request


def _describe_end(traced: Any) -> Ended:
    """Describe a tracer's return value: the result, or the state and the exception."""
    result, ended = traced[0], traced[1]
    if ended is None:
        return Ended({"state": _SUCCESS, "result": result})
    outcome = Outcome.ERROR if ended.state == _FAILURE else Outcome.OK
    raised = ended.retval
    described: dict[str, Any] = {"state": str(ended.state)}
    if isinstance(raised, BaseException):
        described["raised"] = describe_exception(raised)
        when = getattr(raised, "when", None)
        if isinstance(when, (int, float)):
            described["countdown"] = when
    return Ended(described, outcome)


def _store(wrapped: Any, backend: Any, args: Any, kwargs: Any) -> Any:
    """Store a task's result as the worker's work, not the task's; skip it in a replay."""
    if is_replay():
        return None
    with factory.outside_units():
        return wrapped(*args, **kwargs)


def _update(wrapped: Any, task: Any, args: Any, kwargs: Any) -> Any:
    """Record a task's update of its own state as a write."""
    named = {**dict(zip(("task_id", "state", "meta"), args, strict=False)), **kwargs}
    told = {name: named.get(name) for name in ("state", "meta")}
    function_call = FunctionCall(Kind.TOOL.value, "celery.update_state", Effect.WRITE.value, told, prints=False)

    def update() -> None:
        wrapped(*args, **kwargs)

    return call_sync(lambda: function_call, update)


# ── published tasks ─────────────────────────────────────────────────────────────────────────────────
def _publish(wrapped: Any, app: Any, args: Any, kwargs: Any) -> Any:
    """Record publishing a task as a write: a replay compares it and sends nothing."""
    if active_run() is None:
        return wrapped(*args, **kwargs)
    made: list[Any] = []

    def publish() -> str:
        made.append(wrapped(*args, **kwargs))
        return str(made[0].id)

    task_id = call_sync(lambda: _describe_published(args, kwargs), publish)
    if made:
        return made[0]
    return (kwargs.get("result_cls") or app.AsyncResult)(task_id)


def _describe_published(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FunctionCall:
    named = {**dict(zip(("name", "args", "kwargs", "countdown", "eta"), args, strict=False)), **kwargs}
    told = {name: named.get(name) for name in ("name", "args", "kwargs")}
    told |= {name: _name_of(named[name]) for name in _OPTIONS if named.get(name) is not None}
    told |= _without_drawn({name: named[name] for name in _FURTHER if named.get(name)})
    return FunctionCall(Kind.TOOL.value, "celery.send_task", Effect.WRITE.value, told, prints=False)


def _name_of(value: Any) -> Any:
    """Return a queue or an exchange by its name."""
    return getattr(value, "name", value)


def _without_drawn(value: Any) -> Any:
    """Return options, and tasks nested in them, as plain values without what differs each time."""
    if isinstance(value, Mapping):
        return {str(name): _without_drawn(each) for name, each in value.items() if name not in _DRAWN}
    return [_without_drawn(each) for each in value] if isinstance(value, (list, tuple)) else value


# ── the worker ──────────────────────────────────────────────────────────────────────────────────────
def _start(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    """The pool and the broker connection are about to start: a replay now runs the recorded task."""
    if is_replay():
        _replay(worker)
    guard.guarded("the start of a worker", factory.begin_units)
    return wrapped(*args, **kwargs)


def _replay(worker: Any) -> NoReturn:
    replay_job(_worker_of(worker), _describe_end)


def _worker_of(worker: Any) -> Callable[[Mapping[str, Any]], Any]:
    _init_process(worker)

    def work(given: Mapping[str, Any]) -> Any:
        from celery.app.trace import build_tracer

        name = given["task"]
        task = worker.app.tasks.get(name)
        if task is None:
            raise not_here(f"the task {name!r} is not registered in this application")
        trace = build_tracer(name, task, worker.app.loader, worker.hostname, app=worker.app)
        return trace(given["id"], given["args"], given["kwargs"], given["request"])

    return work


def _init_process(worker: Any) -> None:
    """Initialise like a prefork pool's process before its first task."""
    from celery import signals

    if getattr(worker.pool_cls, "__module__", "").endswith(".prefork"):
        worker.app.loader.init_worker_process()
        signals.worker_process_init.send(sender=worker.hostname)
