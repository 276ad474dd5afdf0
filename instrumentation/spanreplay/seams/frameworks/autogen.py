"""Seam: the body (`run`) of every AutoGen tool.

Tools that are agents or teams are AutoGen's own control flow: they run again in a replay, and their calls are served.
"""

from __future__ import annotations

import contextvars
from typing import Any, Final

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.patches import Patches
from spanreplay.seams.frameworks.subclasses import function_wrappers, wrap_subclasses

_COMPOSITE: Final = ("autogen_agentchat.", "autogen_ext.tools.mcp")
_call_id: contextvars.ContextVar[str] = contextvars.ContextVar("spanreplay_autogen_call_id", default="")


def install(module: Any, patches: Patches) -> None:
    """Patch `autogen_core.tools._base`."""
    base = module.BaseTool
    _, run = function_wrappers(_describe)
    wrap_subclasses(base, {"run": run}, patches, is_wanted=lambda cls: not cls.__module__.startswith(_COMPOSITE))
    patches.wrap(base, "run_json", _note_call_id)


async def _note_call_id(wrapped: Any, tool: Any, args: Any, kwargs: Any) -> Any:
    given = args[2] if len(args) > 2 else kwargs.get("call_id")
    token = set_variable(_call_id, str(given or ""))
    try:
        return await wrapped(*args, **kwargs)
    finally:
        reset_variable(_call_id, token)


def _describe(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FunctionCall:
    given = args[0] if args else kwargs.get("args")
    dump = getattr(given, "model_dump", None)
    return FunctionCall(
        kind=Kind.TOOL.value,
        name=str(tool.name),
        effect=Effect.WRITE.value,
        arguments=dump() if dump is not None else {"args": given},
        call_id=_call_id.get(),
        body=getattr(tool, "_func", None),
    )
