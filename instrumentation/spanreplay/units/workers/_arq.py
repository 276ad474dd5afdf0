"""Unit: arq. Each job that a worker performs is its own run.

In a replay Redis is not used: where the worker would poll for jobs, it gets the recorded one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.run import active_run
from spanreplay.units import factory
from spanreplay.units.jobs import (
    Ended,
    is_replay,
    keep_encodable,
    not_here,
    record_job_async,
    replay_jobs_async,
)

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_OPTIONS: Final = ("_queue_name", "_defer_until", "_defer_by", "_expires", "_job_try")
"""Options of a published job that are compared; a generated id differs each time."""
_ID: Final = "_job_id"


def install(module: Any, patches: Patches) -> None:
    """Patch arq's worker, or its connection to Redis."""
    if module.__name__ == "arq.connections":
        patches.wrap(module.ArqRedis, "ping", _ping)
        patches.wrap(module.ArqRedis, "enqueue_job", _publish)
    else:
        patches.wrap(module.Worker, "__init__", _make)
        patches.wrap(module.Worker, "_poll_iteration", _poll)
        patches.wrap(module, "log_redis_info", _ping)


# ── recording ───────────────────────────────────────────────────────────────────────────────────────
def _make(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    """Make each of a worker's function calls a unit, without changing the functions."""
    made = wrapped(*args, **kwargs)
    guard.guarded("a worker", _take, worker)
    return made


def _take(worker: Any) -> None:
    for name, function in list(worker.functions.items()):
        coroutine = _with_unit(worker, name, function.coroutine)
        worker.functions[name] = dataclasses.replace(function, coroutine=coroutine)


def _with_unit(worker: Any, name: str, coroutine: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(coroutine)
    async def work(ctx: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return await record_job_async(
            name,
            lambda: _describe_input(worker, name, ctx, args, kwargs),
            lambda: coroutine(ctx, *args, **kwargs),
            _describe_end,
        )

    return work


def _describe_input(
    worker: Any, name: str, ctx: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    of_job = keep_encodable({member: value for member, value in ctx.items() if member not in worker.ctx})
    return {"function": name, "args": list(args), "kwargs": dict(kwargs), "ctx": of_job}


def _describe_end(result: Any) -> Ended:
    return Ended({"result": result})


# ── published jobs ──────────────────────────────────────────────────────────────────────────────────
async def _publish(wrapped: Any, redis: Any, args: Any, kwargs: Any) -> Any:
    """Record publishing a job as a write: a replay compares it and sends nothing."""
    if active_run() is None:
        return await wrapped(*args, **kwargs)
    made: list[Any] = []

    async def publish() -> str | None:
        made.append(await wrapped(*args, **kwargs))
        return None if made[0] is None else str(made[0].job_id)

    job_id = await call_async(lambda: _describe_published(redis, args, kwargs), publish)
    if made:
        return made[0]
    return None if job_id is None else _make_job(redis, job_id, kwargs)


def _make_job(redis: Any, job_id: str, kwargs: Mapping[str, Any]) -> Any:
    from arq.jobs import Job

    queue = kwargs.get("_queue_name") or redis.default_queue_name
    return Job(job_id, redis=redis, _queue_name=queue, _deserializer=redis.job_deserializer)


def _describe_published(redis: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FunctionCall:
    own = {name: value for name, value in kwargs.items() if name not in (*_OPTIONS, _ID, "function")}
    function, *rest = (*args, kwargs["function"]) if "function" in kwargs else args
    told = {"function": function, "args": rest, "kwargs": own, "queue": redis.default_queue_name}
    told |= {name.strip("_"): kwargs[name] for name in (*_OPTIONS, _ID) if kwargs.get(name) is not None}
    return FunctionCall(Kind.TOOL.value, "arq.enqueue_job", Effect.WRITE.value, told, prints=False)


# ── the worker ──────────────────────────────────────────────────────────────────────────────────────
async def _ping(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Exclude a starting worker's Redis queries from the recording; skip them in a replay."""
    if is_replay():
        return True
    with plumbing():
        return await wrapped(*args, **kwargs)


async def _poll(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    """The worker has started: a replay now runs the recorded job."""
    if is_replay():
        await replay_jobs_async(lambda given: _work(worker, given), _describe_end)
    guard.guarded("the start of a worker", factory.begin_units)
    return await wrapped(*args, **kwargs)


async def _work(worker: Any, given: Mapping[str, Any]) -> Any:
    name = given["function"]
    function = worker.functions.get(name)
    if function is None:
        raise not_here(f"the function {name!r} is not registered in this worker")
    ctx = {**worker.ctx, **given["ctx"]}
    if worker.on_job_start:
        await worker.on_job_start(ctx)
    return await function.coroutine(ctx, *given["args"], **given["kwargs"])
