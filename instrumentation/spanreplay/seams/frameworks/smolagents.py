"""Seam: smolagents' tools, at `Tool.__call__`: neither `setup` nor `forward` runs in a replay.

An agent's Python executor runs for real: the calls its code makes are recorded. Tools that only pass calls on also run
for real (the final answer, the interpreter, those of MCP servers and of LangChain).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spanreplay.model.call import Kind
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.patches import Patches
from spanreplay.seams.frameworks.subclasses import function_wrappers, wrap_subclasses
from spanreplay.seams.frameworks.tools import declared_effect, is_of

_PASSING: Final = frozenset({"FinalAnswerTool", "PythonInterpreterTool", "UserInputTool", "LangChainToolWrapper"})
_SANITIZE: Final = "sanitize_inputs_outputs"


def install(module: Any, patches: Patches) -> None:
    """Patch `smolagents.tools`."""
    call, _ = function_wrappers(_describe, _is_leaf)
    patches.wrap(module.Tool, "__call__", call)
    wrap_subclasses(module.Tool, {"__call__": call}, patches)


def _is_leaf(tool: Any) -> bool:
    cls = type(tool)
    is_passing = cls.__name__ in _PASSING and is_of(cls, ("smolagents",))
    return not is_passing and not is_of(cls, ("mcpadapt",))


def _describe(tool: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FunctionCall:
    arguments = {k: v for k, v in kwargs.items() if k != _SANITIZE}
    if args:
        arguments["*"] = list(args)
    effect = declared_effect({"effect": getattr(tool, "effect", "")})
    return FunctionCall(Kind.TOOL.value, str(tool.name), effect, arguments, body=getattr(tool, "forward", None))
