"""Seam: steps of LlamaIndex workflows: the lane of each step, and the completed step with which the workflow continued.

Steps with the same name share workers, and which worker is free depends on timing. The count of a step's runs in its
workflow does not: the n-th run becomes the lane `li:<step>#<n>`, below the workflow's lane. Run and event IDs are never
used.

When several steps are done, the control loop may continue with any of them. Its choice is recorded as a `compute` call
and repeated in a replay, because the loop's handling of the events depends on it.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Final

import wrapt

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.runtime.lanes import Lane, current_crossing, current_lane, inside_lane
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import Run, active_run

_CHOICE: Final = "llamaindex.next_step"


def install(module: Any, patches: Patches) -> None:
    """Patch the control loop of `workflows`, or the Workflow of older versions of llama-index-core without one."""
    loop = vars(module).get("_ControlLoopRunner")
    workflow = vars(module).get("Workflow")
    if loop is not None:
        patches.wrap(loop, "run_worker", _run_worker)
    elif hasattr(vars(module).get("InternalRunAdapter"), "wait_for_next_task"):
        patches.wrap(module.InternalRunAdapter, "wait_for_next_task", _wait_for_next_task)
    elif workflow is not None and workflow.__module__ == module.__name__:
        patches.wrap(workflow, "_start", _start)


def _next_lane(run: Run, workflow: Lane, step: str) -> Lane:
    return workflow.child(f"li:{step}", current_crossing(run.root_lane))


def _run_worker(wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    result = wrapped(*args, **kwargs)
    pending = getattr(loop, "_pending_workers", None)
    if run is None or not pending:
        return result
    worker = pending[-1]
    path = "/".join((*getattr(worker, "invocation_namespace", ()), str(worker.step_id)))
    worker.coro = _inside(_next_lane(run, current_lane(run.root_lane), path), worker.coro)
    return result


async def _inside(lane: Lane, work: Any) -> Any:
    with inside_lane(lane):
        return await work


async def _wait_for_next_task(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> Any:
    result = await wrapped(*args, **kwargs)
    if active_run() is None:
        return result
    running = args[0] if args else kwargs["running"]
    tasks = {named.key: named.task for named in (*running, *result.started)}
    own = next((key for key, task in tasks.items() if task is result.completed), "")

    async def choose() -> str:
        return own

    chosen = await call_async(lambda: FunctionCall(Kind.COMPUTE.value, _CHOICE, Effect.PURE.value, {}), choose)
    task = tasks.get(chosen)
    if chosen == own or (chosen and task is None):
        return result
    if task is not None:
        await asyncio.wait({task})
    return type(result)(task, result.started)


def _start(wrapped: Any, workflow: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    if run is None:
        return wrapped(*args, **kwargs)
    get_steps = workflow._get_steps
    lane = current_lane(run.root_lane)

    def get_named_steps() -> dict[str, Any]:
        return {name: _name_step(run, lane, name, step) for name, step in get_steps().items()}

    workflow._get_steps = get_named_steps
    try:
        return wrapped(*args, **kwargs)
    finally:
        del workflow._get_steps


def _name_step(run: Run, lane: Lane, name: str, step: Any) -> Any:
    # A step that is not a coroutine runs on a pool, in any order; its worker's lane names it
    if not inspect.iscoroutinefunction(step):
        return step

    async def call(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        with inside_lane(_next_lane(run, lane, name)):
            return await wrapped(*args, **kwargs)

    return wrapt.FunctionWrapper(step, call)
