"""Seam: the function of every LlamaIndex FunctionTool, and the body of the agent's own tool classes.

QueryEngineTool, RetrieverTool and the hand-over between agents are LlamaIndex's own control flow: they run again in a
replay, and the models, retrievers and tools below them are served.
"""

from __future__ import annotations

from typing import Any, Final

from spanreplay import codec
from spanreplay.model.call import Effect, Kind
from spanreplay.model.errors import Unserializable
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.patches import Patches
from spanreplay.seams.frameworks.functions import State, wrap_attribute
from spanreplay.seams.frameworks.subclasses import function_wrappers, wrap_subclasses

_OWN: Final = "llama_index.core."
_ADAPTERS: Final = "llama_index.core.tools.function_tool"
_SYNC_CALLERS: Final = frozenset({"call"})
_ASYNC_CALLERS: Final = frozenset({"acall"})


def install(module: Any, patches: Patches) -> None:
    """Patch `llama_index.core.tools.function_tool` or `.types`."""
    if module.__name__.endswith(".types"):
        run, arun = function_wrappers(_describe_class)
        methods = {"__call__": run, "call": run, "acall": arun}
        wrap_subclasses(module.BaseTool, methods, patches, is_wanted=lambda cls: not cls.__module__.startswith(_OWN))
        return
    tool = module.FunctionTool
    wrap_attribute(tool, "_fn", patches, callers=_SYNC_CALLERS, describe=_describe, is_async=False)
    wrap_attribute(
        tool, "_async_fn", patches, callers=_ASYNC_CALLERS, describe=_describe, is_async=True, state_of=_state_of
    )


class _Store(State):
    """The part of the workflow's store that can be encoded: agents also keep their memory and tools there."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def read(self) -> Any:
        state = await self._store.get_state()
        parts = dict(state.items()) if hasattr(state, "items") else dict(state)
        return {name: part for name, part in parts.items() if _is_plain(part)}

    async def write(self, value: Any) -> None:
        for name, part in value.items():
            await self._store.set(name, part)


def _is_plain(part: Any) -> bool:
    try:
        codec.encode(part)
    except Unserializable:
        return False
    return True


def _state_of(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State | None:
    """Return the workflow's store, if the function receives the workflow's context."""
    context = kwargs.get(getattr(tool, "ctx_param_name", None) or "")
    store = getattr(context, "store", None)
    return _Store(store) if hasattr(store, "get_state") else None


def _find_user_function(tool: Any, function: Any) -> Any:
    """Return the function from which the tool was made; its other form, sync or async, is an adapter around it."""
    for name in ("_fn", "_async_fn"):
        held = vars(tool).get(name)
        if getattr(held, "__module__", None) != _ADAPTERS:
            return held
    return function


def _describe(tool: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FunctionCall | None:
    user = _find_user_function(tool, function)
    if str(getattr(user, "__module__", "")).startswith(_OWN):
        return None
    context = getattr(tool, "ctx_param_name", None)
    arguments: dict[str, Any] = {k: v for k, v in kwargs.items() if k != context}
    if args:
        arguments["*"] = list(args)
    return FunctionCall(Kind.TOOL.value, str(tool.metadata.get_name()), Effect.WRITE.value, arguments, body=user)


def _describe_class(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FunctionCall:
    arguments: dict[str, Any] = {**kwargs, **({"*": list(args)} if args else {})}
    return FunctionCall(Kind.TOOL.value, str(tool.metadata.get_name()), Effect.WRITE.value, arguments)
