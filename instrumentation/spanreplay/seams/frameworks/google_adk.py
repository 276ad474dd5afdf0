"""Seam: Google ADK's tools: the function of a `FunctionTool`, and `run_async` of the agent's own tool classes.

Argument validation, confirmations, callbacks and events are ADK's own and run for real, in a replay too. Changes that a
tool makes in its context (state, transfers, artifacts: the event's actions) are recorded with its result and made again
in a replay. ADK's own functions and tools only pass calls on.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from spanreplay.model.call import Kind
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run
from spanreplay.seams.frameworks.functions import call_with_state
from spanreplay.seams.frameworks.state import Waiting
from spanreplay.seams.frameworks.subclasses import wrap_subclasses
from spanreplay.seams.frameworks.tools import bind_function_call, declared_effect, is_of, provider_id

_ADK: Final = ("google.adk",)
_MADE_UP: Final = "adk-"


class _Actions:
    """The actions of a tool's context: its event will report them as the tool's doing."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._actions = getattr(context, "actions", None)

    def copy(self) -> Any:
        """Return a copy of the fields that are not empty."""
        if self._actions is None:
            return None
        copied = self._actions.model_copy(deep=True)
        return {name: held for name in type(copied).model_fields if (held := getattr(copied, name)) not in (None, {})}

    def restore(self, value: Any) -> None:
        """Set the fields; set the state through the context, which keeps it in two places."""
        for name, member in value.items():
            if name == "state_delta":
                for key, held in member.items():
                    self._context.state[key] = held
            else:
                setattr(self._actions, name, member)


def install(module: Any, patches: Patches) -> None:
    """Patch `google.adk.tools.base_tool` or `google.adk.tools.function_tool`."""
    if module.__name__ == "google.adk.tools.function_tool":
        patches.wrap(module.FunctionTool, "_invoke_callable", _invoke)
        patches.wrap(module.FunctionTool, "run_async", _bind_generator)
        return
    wrap_subclasses(module.BaseTool, {"run_async": _run_async}, patches)


def _describe(tool: Any, arguments: Mapping[str, Any], context: Any, body: Any) -> FunctionCall:
    return FunctionCall(
        kind=Kind.TOOL.value,
        name=str(tool.name),
        effect=declared_effect(getattr(tool, "custom_metadata", None)),
        arguments=arguments,
        call_id=provider_id(getattr(context, "function_call_id", None), _MADE_UP),
        body=body,
    )


def _without_context(tool: Any, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    ignored = set(getattr(tool, "_ignore_params", ())) | {"tool_context", "input_stream"}
    name = getattr(tool, "_context_param_name", "tool_context")
    return {k: v for k, v in arguments.items() if k not in ignored}, arguments.get(name)


async def _invoke(wrapped: Any, tool: Any, args: Any, kwargs: Any) -> Any:
    target = args[0] if args else kwargs["target"]
    if active_run() is None or target is not tool.func or is_of(target, _ADK):
        return await wrapped(*args, **kwargs)
    arguments, context = _without_context(tool, args[1] if len(args) > 1 else kwargs["args_to_call"])
    function_call = _describe(tool, arguments, context, target)
    return await call_with_state(function_call, lambda: wrapped(*args, **kwargs), Waiting(_Actions(context)))


async def _bind_generator(wrapped: Any, tool: Any, args: Any, kwargs: Any) -> Any:
    function = tool.func
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if active_run() is not None and is_generator and not is_of(function, _ADK):

        def describe(_: tuple[Any, ...], named: Mapping[str, Any]) -> FunctionCall:
            arguments, context = _without_context(tool, named)
            return _describe(tool, arguments, context, function)

        bind_function_call(tool, "func", describe)
    return await wrapped(*args, **kwargs)


async def _run_async(wrapped: Any, tool: Any, args: Any, kwargs: Any) -> Any:
    known = {cls.__name__ for cls in type(tool).__mro__ if is_of(cls, _ADK)}
    if active_run() is None or known != {"BaseTool"}:
        return await wrapped(*args, **kwargs)
    context, body = kwargs.get("tool_context"), getattr(type(tool), "run_async", None)
    arguments = dict(kwargs.get("args") or {})
    function_call = _describe(tool, arguments, context, body)
    return await call_with_state(function_call, lambda: wrapped(*args, **kwargs), Waiting(_Actions(context)))
