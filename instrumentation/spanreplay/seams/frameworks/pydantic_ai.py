"""Seam: pydantic-ai's tools (`FunctionToolset.call_tool`, the agent's own toolsets) and output functions.

Validation, hooks, retries (`ModelRetry`), deferred calls and the message to the model are pydantic-ai's own and run for
real, in a replay too. Toolsets that wrap or combine others only pass calls on; MCP's are recorded at the session.
"""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from typing import Any, Final

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run
from spanreplay.seams.frameworks.functions import ObjectState, call_with_state
from spanreplay.seams.frameworks.subclasses import wrap_subclasses
from spanreplay.seams.frameworks.tools import declared_effect, is_of, provider_id

_MADE_UP: Final = "pyd_ai_"
_ADAPTERS: Final = ("pydantic_ai.ext",)
"""Functions of these modules call another framework's tool, which is a separate boundary."""
_toolset: contextvars.ContextVar[Any] = contextvars.ContextVar("spanreplay_pydantic_ai_toolset", default=None)
"""The toolset that is running a tool: if its method calls its base class's, that is the same call."""


def install(module: Any, patches: Patches) -> None:
    """Patch `pydantic_ai.toolsets.function` or `pydantic_ai._function_schema`."""
    if module.__name__ == "pydantic_ai._function_schema":
        patches.wrap(module.FunctionSchema, "call", _call_output_function)
    else:
        wrap_subclasses(module.AbstractToolset, {"call_tool": _call_tool}, patches)


def _is_leaf(toolset: Any) -> bool:
    names = {cls.__name__ for cls in type(toolset).__mro__ if is_of(cls, ("pydantic_ai",))}
    return "FunctionToolset" in names or names == {"AbstractToolset"}


async def _call_tool(wrapped: Any, toolset: Any, args: Any, kwargs: Any) -> Any:
    if active_run() is None or _toolset.get() is toolset or not _is_leaf(toolset):
        return await wrapped(*args, **kwargs)
    given = {**dict(zip(("name", "tool_args", "ctx", "tool"), args, strict=False)), **kwargs}
    function = getattr(getattr(given["tool"], "call_func", None), "__self__", None)
    function = getattr(function, "function", None)

    async def live() -> Any:
        token = set_variable(_toolset, toolset)
        try:
            return await wrapped(*args, **kwargs)
        finally:
            reset_variable(_toolset, token)

    if is_of(function, _ADAPTERS):
        return await live()
    # An agent that the tool asks counts its tokens in the usage that the tool passes on
    states = [None if held is None else ObjectState(held) for held in _held_by(given["ctx"])]
    return await call_with_state(_describe(given, function), live, *states)


def _held_by(context: Any) -> tuple[Any, Any]:
    return getattr(context, "deps", None), getattr(context, "usage", None)


def _describe(given: Mapping[str, Any], function: Any) -> FunctionCall:
    definition = getattr(given["tool"], "tool_def", None)
    return FunctionCall(
        kind=Kind.TOOL.value,
        name=str(given["name"]),
        effect=declared_effect(getattr(definition, "metadata", None)),
        arguments=dict(given["tool_args"]),
        call_id=provider_id(getattr(given["ctx"], "tool_call_id", None), _MADE_UP),
        body=function,
    )


async def _call_output_function(wrapped: Any, schema: Any, args: Any, kwargs: Any) -> Any:
    if active_run() is None or _toolset.get() is not None:
        return await wrapped(*args, **kwargs)
    arguments = args[0] if args else kwargs["args_dict"]
    function_call = FunctionCall(
        Kind.TOOL.value, str(schema.name), Effect.WRITE.value, dict(arguments), body=schema.function
    )
    return await call_async(lambda: function_call, lambda: wrapped(*args, **kwargs))
