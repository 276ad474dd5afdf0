"""Seam: dspy's tools, `Tool.__call__` and `Tool.acall`, below their callbacks.

Callbacks run for real, in a replay too; a tool made from a LangChain tool or an MCP session only passes calls on.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, Final

from spanreplay.model.call import Kind
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.patches import Patches, Wrapper
from spanreplay.seams.frameworks.subclasses import function_wrappers
from spanreplay.seams.frameworks.tools import declared_effect, is_of

_PASSING: Final = ("dspy",)
"""Functions of these modules end a loop, or call a tool of LangChain or of an MCP session, a separate boundary."""


def install(module: Any, patches: Patches) -> None:
    """Patch `dspy.adapters.types.tool`."""
    call, acall = function_wrappers(_describe, _is_leaf)
    _wrap_below_callbacks(module, "__call__", call, patches)
    _wrap_below_callbacks(module, "acall", acall, patches)


def _wrap_below_callbacks(module: Any, name: str, wrapper: Wrapper, patches: Patches) -> None:
    original = vars(module.Tool)[name].__wrapped__

    # Decorated again: functions that call ours with the tool as first argument, as `with_callbacks` does
    @functools.wraps(original)
    def below(tool: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(functools.partial(original, tool), tool, args, kwargs)

    @functools.wraps(original)
    async def abelow(tool: Any, *args: Any, **kwargs: Any) -> Any:
        return await wrapper(functools.partial(original, tool), tool, args, kwargs)

    is_async = inspect.iscoroutinefunction(original)
    patches.replace(module.Tool, name, module.with_callbacks(abelow if is_async else below))


def _is_leaf(tool: Any) -> bool:
    return not is_of(tool.func, _PASSING)


def _describe(tool: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FunctionCall:
    return FunctionCall(Kind.TOOL.value, str(tool.name), declared_effect(None), dict(kwargs), body=tool.func)
