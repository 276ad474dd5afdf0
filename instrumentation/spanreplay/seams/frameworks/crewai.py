"""Seam: CrewAI's tools: `_run` and `_arun` of tool classes, the functions of `@tool` and of structured tools.

Argument validation, usage limits, caching and events are CrewAI's own and run for real, in a replay too. So do its own
tools, which pass work on to another agent or to an MCP session.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from spanreplay.codec import call_arguments
from spanreplay.model.call import Kind
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run
from spanreplay.seams.frameworks.subclasses import function_wrappers, wrap_subclasses
from spanreplay.seams.frameworks.tools import bind_function_call, declared_effect, is_of

_METHODS: Final = ("run", "_run", "arun", "_arun")
_STRUCTURED_METHODS: Final = ("invoke", "ainvoke", "_run")


def install(module: Any, patches: Patches) -> None:
    """Patch `crewai.tools.base_tool` or `crewai.tools.structured_tool`."""
    if module.__name__ == "crewai.tools.structured_tool":
        for name in _STRUCTURED_METHODS:
            patches.wrap(module.CrewStructuredTool, name, _bind)
        return
    run, arun = function_wrappers(_describe, _is_leaf)
    wrap_subclasses(module.BaseTool, {"_run": run, "_arun": arun}, patches)
    for name in _METHODS:
        patches.wrap(module.Tool, name, _bind)


def _is_leaf(tool: Any) -> bool:
    # `Tool` runs the function that it holds, which is the boundary
    return not is_of(type(tool), ("crewai",))


def _describe(tool: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FunctionCall:
    arguments: dict[str, Any] = dict(kwargs)
    if args:
        arguments["*"] = list(args)
    effect = declared_effect({"effect": getattr(tool, "effect", "")})
    return FunctionCall(Kind.TOOL.value, str(tool.name), effect, arguments, body=getattr(type(tool), "_run", None))


def _bind(wrapped: Any, tool: Any, args: Any, kwargs: Any) -> Any:
    function = getattr(tool, "func", None)
    if active_run() is not None and function is not None and not _is_method_of_tool(function):
        signature, name = inspect.signature(function), str(tool.name)

        def describe(given: tuple[Any, ...], named: dict[str, Any]) -> FunctionCall:
            arguments = call_arguments(signature, given, named)
            return FunctionCall(Kind.TOOL.value, name, declared_effect(None), arguments, body=function)

        bind_function_call(tool, "func", describe)
    return wrapped(*args, **kwargs)


def _is_method_of_tool(function: Any) -> bool:
    return hasattr(getattr(function, "__self__", None), "_run")
