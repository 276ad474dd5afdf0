"""Seam: the function of every Haystack tool.

A component or pipeline used as a tool is Haystack's own control flow: it runs again in a replay, and its calls are
served.
"""

from __future__ import annotations

from typing import Any, Final

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.patches import Patches
from spanreplay.seams.frameworks.functions import wrap_attribute

_COMPOSITE: Final = frozenset({"ComponentTool", "PipelineTool", "AgentTool"})


def install(module: Any, patches: Patches) -> None:
    """Patch `haystack.tools.tool`."""
    tool = module.Tool
    wrap_attribute(tool, "function", patches, callers=frozenset({"invoke"}), describe=_describe, is_async=False)
    if "async_function" in vars(tool):
        wrap_attribute(
            tool, "async_function", patches, callers=frozenset({"invoke_async"}), describe=_describe, is_async=True
        )


def _describe(tool: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FunctionCall | None:
    if any(cls.__name__ in _COMPOSITE and cls.__module__.startswith("haystack") for cls in type(tool).__mro__):
        return None
    arguments: dict[str, Any] = {**kwargs, **({"*": list(args)} if args else {})}
    return FunctionCall(Kind.TOOL.value, str(tool.name), Effect.WRITE.value, arguments, body=function)
