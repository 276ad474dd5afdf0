"""Seam: Agno's tools, at the function (`entrypoint`) that a call runs; hooks, caching and limits run for real.

A tool's changes of the session state are recorded with its result and made again in a replay. Agno's own functions only
pass calls on, to a team member or to an MCP session.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from spanreplay.model.call import Kind
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run
from spanreplay.seams.frameworks.functions import call_with_state
from spanreplay.seams.frameworks.state import DictState, Waiting, call_sync_with_state
from spanreplay.seams.frameworks.tools import bind_function_call, declared_effect, is_of, provider_id

_PASSING: Final = ("agno.agent", "agno.team", "agno.utils.mcp", "agno.tools.mcp", "agno.workflow")
_PLUMBING: Final = frozenset({"agent", "team", "fc", "run_context", "images", "videos", "audios", "files"})
_call: ContextVar[Any] = ContextVar("spanreplay_agno_call", default=None)
"""The FunctionCall that is running."""


def install(module: Any, patches: Patches) -> None:
    """Patch `agno.tools.function`."""
    patches.wrap(module.FunctionCall, "execute", _execute)
    patches.wrap(module.FunctionCall, "aexecute", _aexecute)


def _execute(wrapped: Any, call: Any, args: Any, kwargs: Any) -> Any:
    if active_run() is None:
        return wrapped(*args, **kwargs)
    _bind(call.function)
    token = set_variable(_call, call)
    try:
        return wrapped(*args, **kwargs)
    finally:
        reset_variable(_call, token)


async def _aexecute(wrapped: Any, call: Any, args: Any, kwargs: Any) -> Any:
    if active_run() is None:
        return await wrapped(*args, **kwargs)
    _bind(call.function)
    token = set_variable(_call, call)
    try:
        return await wrapped(*args, **kwargs)
    finally:
        reset_variable(_call, token)


def _bind(function: Any) -> None:
    entrypoint = function.entrypoint
    if entrypoint is None or is_of(entrypoint, _PASSING):
        return
    name = str(function.name)

    def describe(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FunctionCall:
        arguments: dict[str, Any] = {k: v for k, v in kwargs.items() if k not in _PLUMBING and not k.startswith("_")}
        if args:
            arguments["*"] = list(args)
        call_id = provider_id(getattr(_call.get(), "call_id", None))
        return FunctionCall(Kind.TOOL.value, name, declared_effect(None), arguments, call_id, body=entrypoint)

    bind_function_call(function, "entrypoint", describe, _wrap)


def _wrap(entrypoint: Any, describe: Callable[..., FunctionCall]) -> Any:
    """Make the entrypoint a boundary that also restores the session state."""

    @functools.wraps(entrypoint)
    def call(*args: Any, **kwargs: Any) -> Any:
        return call_sync_with_state(describe(args, kwargs), lambda: entrypoint(*args, **kwargs), _state(kwargs))

    @functools.wraps(entrypoint)
    async def acall(*args: Any, **kwargs: Any) -> Any:
        state = Waiting(_state(kwargs))
        return await call_with_state(describe(args, kwargs), lambda: entrypoint(*args, **kwargs), state)

    return acall if inspect.iscoroutinefunction(inspect.unwrap(entrypoint)) else call


def _state(kwargs: Mapping[str, Any]) -> DictState:
    function = getattr(_call.get(), "function", None)
    context = getattr(function, "_run_context", None) or kwargs.get("run_context")
    held = getattr(context, "session_state", None)
    return DictState(held if isinstance(held, dict) else {})
