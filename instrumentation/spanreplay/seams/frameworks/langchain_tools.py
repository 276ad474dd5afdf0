"""Seam: the body (`_run`, `_arun`) of every LangChain tool.

It is the innermost method, not `run`: callbacks, argument parsing, error handling and the ToolMessage are LangChain's
own and run for real, in a replay too; the raw return value or exception is recorded.
"""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from typing import Any, Final

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import NO_META, FunctionCall
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.patches import Patches
from spanreplay.seams.frameworks import callback_handlers
from spanreplay.seams.frameworks.subclasses import function_wrappers, wrap_subclasses

_PLUMBING: Final = frozenset({"callbacks", "config", "run_manager", "runtime"})
_PLUMBING_MODULES: Final = ("langchain_core.callbacks", "langchain_core.runnables", "langgraph.runtime")
_call_id: contextvars.ContextVar[str] = contextvars.ContextVar("spanreplay_tool_call_id", default="")


def install(module: Any, patches: Patches) -> None:
    """Patch `langchain_core.tools.base`."""
    base = module.BaseTool
    run, arun = function_wrappers(_describe, watch=callback_handlers.watch)
    wrap_subclasses(base, {"_run": run, "_arun": arun}, patches)
    patches.wrap(base, "run", _note_call_id)
    patches.wrap(base, "arun", _note_call_id_async)


# Constants, because `.value` of an enum member is a Python function call
_TOOL, _WRITE = Kind.TOOL.value, Effect.WRITE.value
_EFFECTS = frozenset(e.value for e in Effect)


def _note_call_id(wrapped: Any, tool: Any, args: Any, kwargs: Any) -> Any:
    token = set_variable(_call_id, str(kwargs.get("tool_call_id") or ""))
    try:
        return wrapped(*args, **kwargs)
    finally:
        reset_variable(_call_id, token)


async def _note_call_id_async(wrapped: Any, tool: Any, args: Any, kwargs: Any) -> Any:
    token = set_variable(_call_id, str(kwargs.get("tool_call_id") or ""))
    try:
        return await wrapped(*args, **kwargs)
    finally:
        reset_variable(_call_id, token)


_PLAIN_TYPES: Final = frozenset({str, int, float, bool, type(None), dict, list, tuple})


def _describe(tool: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FunctionCall:
    injected = getattr(tool, "_injected_args_keys", ())
    arguments: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name in _PLUMBING or name in injected:
            continue
        kind = type(value)
        if kind in _PLAIN_TYPES or not kind.__module__.startswith(_PLUMBING_MODULES):
            arguments[name] = value
    if args:
        arguments["*"] = list(args)
    metadata = getattr(tool, "metadata", None)
    declared = metadata.get("effect", "") if metadata else ""
    effect = declared if declared in _EFFECTS else _WRITE
    body = getattr(tool, "func", None) or getattr(tool, "coroutine", None)
    return FunctionCall(_TOOL, str(tool.name), effect, arguments, _call_id.get(), NO_META, body)
