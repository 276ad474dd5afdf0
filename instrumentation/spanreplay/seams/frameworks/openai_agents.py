"""Seam: the function of every function tool of openai-agents.

The boundary lies inside the SDK's error handling, guardrails, time limit and tracing, which run for real. An agent used
as a tool and the tools of an MCP server are not boundaries: their calls are recorded below them.
"""

from __future__ import annotations

import json
from typing import Any, Final

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.patches import Patches
from spanreplay.seams.frameworks.functions import ObjectState, State, wrap_attribute

_CALLERS: Final = frozenset({"_invoke_function_tool_with_metadata", "invoke_function_tool"})
_INVOKER: Final = "_FailureHandlingFunctionToolInvoker"


def install(module: Any, patches: Patches) -> None:
    """Patch `agents.tool`."""
    invoker = vars(module).get(_INVOKER)

    def describe(tool: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FunctionCall | None:
        # The SDK's own invoker has the boundary inside
        return None if invoker is not None and isinstance(function, invoker) else _describe(tool, function, args)

    wrap_attribute(
        module.FunctionTool,
        "on_invoke_tool",
        patches,
        callers=_CALLERS,
        describe=describe,
        is_async=True,
        state_of=_state_of,
    )
    if invoker is not None:
        wrap_attribute(
            invoker,
            "_invoke_tool_impl",
            patches,
            callers=frozenset({"__call__"}),
            describe=lambda bound, function, args, kwargs: _describe(bound._function_tool, function, args),
            is_async=True,
            state_of=_state_of,
        )


def _is_composite(tool: Any) -> bool:
    origin = getattr(getattr(getattr(tool, "_tool_origin", None), "type", None), "value", "function")
    return bool(getattr(tool, "_is_agent_tool", False)) or origin != "function"


def _describe(tool: Any, function: Any, args: tuple[Any, ...]) -> FunctionCall | None:
    if tool is None or len(args) < 2 or _is_composite(tool):
        return None
    context, text = args[0], args[1]
    user = getattr(function, "__agents_function_tool_wrapped_callable__", function)
    return FunctionCall(
        kind=Kind.TOOL.value,
        name=str(tool.name),
        effect=Effect.WRITE.value,
        arguments=_read_arguments(text),
        call_id=str(getattr(context, "tool_call_id", "") or ""),
        body=user,
    )


def _read_arguments(text: Any) -> dict[str, Any]:
    try:
        read = json.loads(text) if text else {}
    except (TypeError, ValueError):
        read = text
    return read if isinstance(read, dict) else {"input": read}


def _state_of(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State | None:
    context = getattr(args[0], "context", None) if args else None
    return None if context is None else ObjectState(context)
