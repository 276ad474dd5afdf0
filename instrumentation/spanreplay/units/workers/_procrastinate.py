"""Unit: procrastinate. Each job that a worker processes is its own run, with its middleware.

In a replay the worker does not ask its database: where it would start to fetch jobs, it gets the recorded one.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind, Outcome
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async, call_sync
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

_OF_WORKER: Final = frozenset({"id", "status", "attempts", "abort_requested", "worker_id"})
"""Fields of a job that the database or a worker sets; a published job does not have them yet."""
_STARTED: Final = "start_timestamp"
_RESULT, _EXCEPTION, _RETRY = "result", "exception", "retry"
_processed: Final[contextvars.ContextVar[dict[str, Any] | None]] = contextvars.ContextVar(
    "spanreplay_procrastinate", default=None
)
"""How the processing of the job in this context ended."""


def install(module: Any, patches: Patches) -> None:
    """Patch procrastinate's worker, or what publishes jobs."""
    if module.__name__ == "procrastinate.manager":
        patches.wrap(module.JobManager, "batch_defer_jobs_async", _publish_async)
        patches.wrap(module.JobManager, "batch_defer_jobs", _publish)
    else:
        patches.wrap(module.Worker, "run", _run)
        patches.wrap(module.Worker, "_process_job", _process)
        patches.wrap(module.Worker, "_log_job_outcome", _note_outcome)
        patches.wrap(module.Worker, "_persist_job_status", _persist)


# ── recording ───────────────────────────────────────────────────────────────────────────────────────
async def _process(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    context = args[0] if args else kwargs["context"]
    if is_replay() or worker.app.tasks.get(context.job.task_name) is None:  # the worker says that it has no such task
        return await wrapped(*args, **kwargs)
    with factory.outside_units():  # out of the block in which the worker itself runs
        await record_job_async(
            context.job.task_name,
            lambda: _describe_input(context),
            lambda: _watch(lambda: wrapped(*args, **kwargs)),
            _describe_end,
        )
    return None


def _describe_input(context: Any) -> dict[str, Any]:
    return {**keep_encodable(_fields_of(context.job)), _STARTED: context.start_timestamp}


def _fields_of(job: Any) -> dict[str, Any]:
    return {each.name: getattr(job, each.name) for each in type(job).__attrs_attrs__}


async def _watch(work: Callable[[], Any]) -> dict[str, Any]:
    """Process a job; return how it ended."""
    told: dict[str, Any] = {}
    token = set_variable(_processed, told)
    try:
        await work()
    finally:
        reset_variable(_processed, token)
    return told


def _note_outcome(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    told = _processed.get()
    if told is not None:
        result, raised = kwargs.get("job_result"), kwargs.get("exc_info")
        told |= {_RESULT: getattr(result, _RESULT, None), _RETRY: kwargs.get("job_retry") is not None}
        told[_EXCEPTION] = raised if isinstance(raised, BaseException) else None
    return wrapped(*args, **kwargs)


def _describe_end(told: Mapping[str, Any]) -> Ended:
    """Describe the result, or the exception and whether the job is tried again."""
    exc = told.get(_EXCEPTION)
    if exc is None:
        return Ended({_RESULT: told.get(_RESULT)})
    return Ended({"raised": describe_exception(exc), "retried": bool(told.get(_RETRY))}, Outcome.ERROR)


async def _persist(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    """Leave storing a job's status to the worker: not part of the job, and left out in a replay."""
    if is_replay():
        return None
    with factory.unrecorded():
        return await wrapped(*args, **kwargs)


# ── published jobs ──────────────────────────────────────────────────────────────────────────────────
async def _publish_async(wrapped: Any, manager: Any, args: Any, kwargs: Any) -> Any:
    """Record publishing jobs as a write: a replay compares it and stores nothing."""
    if active_run() is None:
        return await wrapped(*args, **kwargs)
    jobs, made = args[0] if args else kwargs["jobs"], []

    async def publish() -> list[int]:
        made.extend(await wrapped(*args, **kwargs))
        return [job.id for job in made]

    return made or _with_ids(jobs, await call_async(lambda: _describe_published(jobs), publish))


def _publish(wrapped: Any, manager: Any, args: Any, kwargs: Any) -> Any:
    """Synchronous `_publish_async`."""
    if active_run() is None:
        return wrapped(*args, **kwargs)
    jobs, made = args[0] if args else kwargs["jobs"], []

    def publish() -> list[int]:
        made.extend(wrapped(*args, **kwargs))
        return [job.id for job in made]

    return made or _with_ids(jobs, call_sync(lambda: _describe_published(jobs), publish))


def _with_ids(jobs: list[Any], ids: list[int]) -> list[Any]:
    return [job.evolve(id=number, status="todo") for job, number in zip(jobs, ids, strict=True)]


def _describe_published(jobs: list[Any]) -> FunctionCall:
    every = [{name: value for name, value in _fields_of(job).items() if name not in _OF_WORKER} for job in jobs]
    told = {"jobs": [keep_encodable(each) for each in every]}
    return FunctionCall(Kind.TOOL.value, "procrastinate.defer", Effect.WRITE.value, told, prints=False)


# ── the worker ──────────────────────────────────────────────────────────────────────────────────────
async def _run(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    """The worker has started: a replay now processes the recorded job."""
    if is_replay():
        await replay_jobs_async(lambda given: _work(worker, given), _describe_end)
    guard.guarded("the start of a worker", factory.begin_units)
    with factory.unrecorded():  # its own queries: asking for jobs, heartbeats
        return await wrapped(*args, **kwargs)


async def _work(worker: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    from procrastinate.job_context import JobContext
    from procrastinate.jobs import Job

    if worker.app.tasks.get(given["task_name"]) is None:
        raise not_here(f"the task {given['task_name']!r} is not registered in this app")
    context = JobContext(
        app=worker.app,
        worker_name=worker.worker_name,
        worker_queues=worker.queues,
        additional_context=dict(worker.additional_context or {}),
        job=Job(**{name: value for name, value in given.items() if name != _STARTED}),
        abort_reason=lambda: None,
        start_timestamp=given[_STARTED],
    )
    return await _watch(lambda: worker._process_job(context))
