"""Seam: the body (`_run`, `_arun`) of every LangChain tool.

The leaf, not `run`: callbacks, argument parsing, error handling and the ToolMessage are LangChain's own and run for
real, in a replay too; what is recorded is the raw return value or exception.
"""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from typing import Any, Final

from spanreplay._patch import Patches
from spanreplay.call import Effect, Kind
from spanreplay.leaf import Leaf, call_async, call_sync
from spanreplay.run import active_run
from spanreplay.seams._subclasses import wrap_subclasses

_PLUMBING: Final = frozenset({"callbacks", "config", "run_manager", "runtime"})
_PLUMBING_MODULES: Final = ("langchain_core.callbacks", "langchain_core.runnables", "langgraph.runtime")
_call_id: contextvars.ContextVar[str] = contextvars.ContextVar("spanreplay_tool_call_id", default="")
_inside: contextvars.ContextVar[Any] = contextvars.ContextVar("spanreplay_tool", default=None)


def install(module: Any, patches: Patches) -> None:
    """Patch `langchain_core.tools.base`."""
    base = module.BaseTool
    wrap_subclasses(base, {"_run": _run, "_arun": _arun}, patches)
    patches.wrap(base, "run", _note_call_id)
    patches.wrap(base, "arun", _note_call_id_async)


def _note_call_id(wrapped: Any, tool: Any, args: Any, kwargs: Any) -> Any:
    token = _call_id.set(str(kwargs.get("tool_call_id") or ""))
    try:
        return wrapped(*args, **kwargs)
    finally:
        _call_id.reset(token)


async def _note_call_id_async(wrapped: Any, tool: Any, args: Any, kwargs: Any) -> Any:
    token = _call_id.set(str(kwargs.get("tool_call_id") or ""))
    try:
        return await wrapped(*args, **kwargs)
    finally:
        _call_id.reset(token)


def _is_plumbing(name: str, value: Any, injected: Any) -> bool:
    if name in _PLUMBING or name in injected:
        return True
    return type(value).__module__.startswith(_PLUMBING_MODULES)


def _describe(tool: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Leaf:
    injected = getattr(tool, "_injected_args_keys", ())
    arguments: dict[str, Any] = {k: v for k, v in kwargs.items() if not _is_plumbing(k, v, injected)}
    if args:
        arguments["*"] = list(args)
    declared = (getattr(tool, "metadata", None) or {}).get("effect", "")
    known = {e.value for e in Effect}
    return Leaf(
        kind=Kind.TOOL.value,
        name=str(tool.name),
        effect=declared if declared in known else Effect.WRITE.value,
        arguments=arguments,
        call_id=_call_id.get(),
        body=getattr(tool, "func", None) or getattr(tool, "coroutine", None),
    )


def _run(wrapped: Any, tool: Any, args: Any, kwargs: Any) -> Any:
    if active_run() is None or _inside.get() is tool:
        return wrapped(*args, **kwargs)

    def live() -> Any:
        token = _inside.set(tool)
        try:
            return wrapped(*args, **kwargs)
        finally:
            _inside.reset(token)

    return call_sync(lambda: _describe(tool, args, kwargs), live)


async def _arun(wrapped: Any, tool: Any, args: Any, kwargs: Any) -> Any:
    if active_run() is None or _inside.get() is tool:
        return await wrapped(*args, **kwargs)

    async def live() -> Any:
        token = _inside.set(tool)
        try:
            return await wrapped(*args, **kwargs)
        finally:
            _inside.reset(token)

    return await call_async(lambda: _describe(tool, args, kwargs), live)
