"""Seam: LangGraph's node execution. Records nothing; names the lane of each node.

Nodes run on a pool or as tasks, in an order that depends on timing. LangGraph's own (step, node, path) does not: it
becomes the lane `lg:<step>:<node>:<path>`, below the lane that called the graph. Checkpoint namespaces and task IDs are
derived from times and random IDs and are never used.

A graph that resumes at one of its checkpoints repeats steps that it has already taken. LangGraph runs their work a
second time; a replay answers it from the recording.
"""

from __future__ import annotations

import contextvars
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from typing import Any

from spanreplay.runtime.calls.repeating import repeating
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.lanes import Lane, current_crossing, current_lane, inside_lane
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run

_base: contextvars.ContextVar[Lane | None] = contextvars.ContextVar("spanreplay_graph_lane", default=None)
_OPAQUE = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_PATH_PARTS_MAX = 12


def install(module: Any, patches: Patches) -> None:
    """Patch node execution (`langgraph.pregel._retry`, before 0.5 `.retry`) and the graph's entry (`.main`)."""
    if "run_with_retry" in vars(module) and module.__name__.endswith("retry"):
        patches.wrap(module, "run_with_retry", _run)
        patches.wrap(module, "arun_with_retry", _arun)
    graph = vars(module).get("Pregel")
    if graph is not None and graph.__module__ == module.__name__:
        patches.wrap(graph, "stream", _stream)
        patches.wrap(graph, "astream", _astream)


def _lane_of(task: Any) -> Lane | None:
    run = active_run()
    if run is None:
        return None
    base = _base.get() or current_lane(run.root_lane)
    metadata = (getattr(task, "config", None) or {}).get("metadata", {})
    step = metadata.get("langgraph_step", "?")
    path = metadata.get("langgraph_path", getattr(task, "path", ()))
    label = f"lg:{step}:{task.name}:{'.'.join(_flatten(path))}"
    return base.named_child(label, current_crossing(run.root_lane))


def _flatten(path: Any) -> list[str]:
    parts: list[str] = []
    stack = [path]
    while stack and len(parts) < _PATH_PARTS_MAX:
        item = stack.pop()
        if isinstance(item, (tuple, list)):
            stack.extend(reversed(item))
        elif isinstance(item, (str, int)) and not isinstance(item, bool) and not _OPAQUE.search(str(item)):
            parts.append(str(item).removeprefix("__pregel_"))
    return parts


def _run(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    lane = _lane_of(args[0] if args else kwargs["task"])
    if lane is None:
        return wrapped(*args, **kwargs)
    with inside_lane(lane):
        return wrapped(*args, **kwargs)


def _arun(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    lane = _lane_of(args[0] if args else kwargs["task"])
    if lane is None:
        return wrapped(*args, **kwargs)
    return _arun_inside(lane, wrapped, args, kwargs)


async def _arun_inside(lane: Lane, wrapped: Any, args: Any, kwargs: Any) -> Any:
    with inside_lane(lane):
        return await wrapped(*args, **kwargs)


def _is_taken_up_again(args: Any, kwargs: Any) -> bool:
    config = args[1] if len(args) > 1 else kwargs.get("config")
    return bool(((config or {}).get("configurable") or {}).get("checkpoint_id"))


def _stream(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    stream = wrapped(*args, **kwargs)
    return stream if run is None else _iterate(stream, _Step(current_lane(run.root_lane), args, kwargs))


def _astream(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    run = active_run()
    stream = wrapped(*args, **kwargs)
    return stream if run is None else _aiterate(stream, _Step(current_lane(run.root_lane), args, kwargs))


class _Step:
    """Entered only around each step: between steps the caller's own context must not see it."""

    def __init__(self, lane: Lane, args: Any, kwargs: Any) -> None:
        self._lane = lane
        self._is_again = _is_taken_up_again(args, kwargs)

    def __enter__(self) -> None:
        self._token = set_variable(_base, self._lane)
        self._repeating = repeating() if self._is_again else nullcontext()
        self._repeating.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        self._repeating.__exit__(None, None, None)
        reset_variable(_base, self._token)


def _iterate(stream: Iterator[Any], step: _Step) -> Iterator[Any]:
    try:
        while True:
            try:
                with step:
                    item = next(stream)
            except StopIteration:
                return
            yield item
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()


async def _aiterate(stream: AsyncIterator[Any], step: _Step) -> AsyncIterator[Any]:
    try:
        while True:
            try:
                with step:
                    item = await stream.__anext__()
            except StopAsyncIteration:
                return
            yield item
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None and sys.exc_info()[0] is GeneratorExit:
            await close()
