"""Unit: RQ. Each job that a worker performs is its own run, in a work horse or in the worker's process.

In a replay no worker is created and Redis is not used: where the program would create its worker, the recorded job
runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.run import active_run
from spanreplay.units import factory
from spanreplay.units.jobs import Ended, is_replay, keep_encodable, not_here, record_job, replay_job

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_GIVEN: Final = ("id", "func_name", "args", "kwargs", "meta", "origin", "timeout", "retries_left", "number_of_retries")
_COMPARED: Final = ("func_name", "args", "kwargs", "meta", "timeout", "ttl", "result_ttl", "failure_ttl")
"""Members of a published job that are compared; its id differs each time."""
_OF_RQ: Final = frozenset(
    (
        "_args", "_cached_result", "_data", "_dependency_ids", "_exc_info", "_failure_callback", "_func_name", "_id",
        "_instance", "_kwargs", "_result", "_status", "_stopped_callback", "_success_callback", "_unreadable_meta",
        "connection", "created_at", "description", "ended_at", "enqueued_at", "group_id", "last_heartbeat", "log",
        "origin", "redis_server_version", "serializer", "started_at", "worker_name",
    )
)  # fmt: skip
"""Attributes of a job that RQ sets, or that others repeat. The rest is compared where it is set."""
_PARAMETERS: Final = {
    "enqueue_job": ("job", "pipeline", "at_front", "unique"),
    "schedule_job": ("job", "datetime", "pipeline", "unique"),
}
_ID: Final = "id"
_SET: Final = ("enqueued_at", "origin", "timeout", "_status")
"""What publishing sets in a job, besides its id; an older recording has the id alone."""


def install(module: Any, patches: Patches) -> None:
    """Patch one of RQ's modules."""
    if module.__name__ == "rq.job":
        patches.wrap(module.Job, "perform", _perform)
        patches.wrap(module.Job, "save_meta", _save_meta)
    elif module.__name__ == "rq.queue":
        patches.wrap(module.Queue, "enqueue_job", _publish)
        patches.wrap(module.Queue, "schedule_job", _publish)
    elif module.__name__ == "rq.cli.workers":
        patches.wrap(module, "is_suspended", _make_worker)  # the first Redis query of the command `rq worker`
    else:
        patches.wrap(module.BaseWorker, "__init__", _make_worker)


# ── recording ───────────────────────────────────────────────────────────────────────────────────────
def _perform(wrapped: Any, job: Any, args: Any, kwargs: Any) -> Any:
    if is_replay() or not job.worker_name:  # without a worker, the program performs the job itself
        return wrapped(*args, **kwargs)
    given = guard.guarded("a job", lambda: {name: getattr(job, name) for name in _GIVEN}) or {}
    name = str(given.get("func_name", ""))
    return record_job(name, lambda: keep_encodable(given), lambda: wrapped(*args, **kwargs), _describe_end, job.meta)


def _describe_end(result: Any) -> Ended:
    return Ended({"result": result})


# ── published jobs ──────────────────────────────────────────────────────────────────────────────────
def _publish(wrapped: Any, queue: Any, args: Any, kwargs: Any) -> Any:
    """Record publishing a job as a write: a replay compares it and sends nothing."""
    if active_run() is None:
        return wrapped(*args, **kwargs)
    job = args[0] if args else kwargs["job"]
    made: list[Any] = []

    def describe() -> FunctionCall:
        named = {**dict(zip(_PARAMETERS[wrapped.__name__], args, strict=False)), **kwargs}
        told = _describe_published(queue.name, job, named)
        return FunctionCall(Kind.TOOL.value, "rq.enqueue", Effect.WRITE.value, told, prints=False)

    def publish() -> dict[str, Any]:
        made.append(wrapped(*args, **kwargs))
        return keep_encodable({name: getattr(made[0], name, None) for name in (_ID, *_SET)})

    told: Any = call_sync(describe, publish)
    if made:
        return made[0]
    for name, value in told.items() if isinstance(told, dict) else [(_ID, told)]:
        setattr(job, name, value)
    return job


def _describe_published(queue: str, job: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    told = {"queue": queue, **{name: getattr(job, name) for name in _COMPARED}}
    if job.description != job.get_call_string():
        told["description"] = job.description
    further = {name: value for name, value in vars(job).items() if value and name not in {*_COMPARED, *_OF_RQ}}
    told |= {name.strip("_"): value for name, value in further.items()}
    if job.instance is not None:
        told["instance"] = job.instance
    if job._dependency_ids:
        told["dependencies"] = len(job._dependency_ids)
    when = named.get("datetime")
    if when is not None:
        told["at"] = when
    return {**told, **{name: True for name in ("at_front", "unique") if named.get(name)}}


def _save_meta(wrapped: Any, job: Any, args: Any, kwargs: Any) -> Any:
    function_call = FunctionCall(Kind.TOOL.value, "rq.save_meta", Effect.WRITE.value, {"meta": job.meta}, prints=False)

    def save() -> None:
        wrapped(*args, **kwargs)

    return call_sync(lambda: function_call, save)


# ── the worker ──────────────────────────────────────────────────────────────────────────────────────
def _make_worker(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    """A worker is about to use Redis for the first time: a replay now runs the recorded job."""
    if is_replay():
        _replay()
    guard.guarded("the start of a worker", factory.begin_units)
    return wrapped(*args, **kwargs)


def _replay() -> NoReturn:
    replay_job(_work, _describe_end)


def _work(given: Mapping[str, Any]) -> Any:
    from redis import Redis
    from rq.job import Job
    from rq.utils import import_attribute

    name = given["func_name"]
    try:
        import_attribute(name)
    except ValueError as exc:
        raise not_here(f"the function {name!r} of the job can't be imported: {exc}") from exc
    job = Job.create(name, args=given["args"], kwargs=given["kwargs"], connection=Redis(), id=given[_ID])
    for each in _GIVEN[4:]:
        if each in given:
            setattr(job, each, given[each])
    return job.perform()
