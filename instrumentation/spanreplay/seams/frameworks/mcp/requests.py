"""Seam: every request of an MCP client session, and what its server sends meanwhile (`messages.py`).

mcp 1: `ClientSession.send_request` (typed models); mcp 2: `JSONRPCDispatcher.send_raw_request` (plain dicts), through
which `ClientSession` and `Client` both send.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls import passed
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run
from spanreplay.seams.frameworks.mcp import dispatched, messages, received

_CALL_TOOL = "tools/call"


def install(module: Any, patches: Patches) -> None:
    """Patch `mcp.shared.jsonrpc_dispatcher` (v2) or, if it doesn't exist, `mcp.client.session` (v1)."""
    if module.__name__ == "mcp.shared.jsonrpc_dispatcher":
        patches.wrap(module.JSONRPCDispatcher, "send_raw_request", _send_raw)
        dispatched.install(module, patches)
    elif _has_dispatcher():
        dispatched.install_session(module, patches)
    else:
        patches.wrap(module.ClientSession, "send_request", _send_typed)
        received.install(module, patches)


def _has_dispatcher() -> bool:
    from importlib.util import find_spec

    return find_spec("mcp.shared.jsonrpc_dispatcher") is not None


def _describe(method: str, params: Mapping[str, Any] | None) -> FunctionCall:
    shown = {k: v for k, v in (params or {}).items() if k != "_meta"}
    is_tool = method == _CALL_TOOL
    return FunctionCall(
        kind=Kind.MCP.value,
        name=str(shown.get("name", method)) if is_tool else method,
        effect=(Effect.WRITE if is_tool else Effect.READ).value,
        arguments={"method": method, "params": shown},
    )


async def _send_raw(wrapped: Any, dispatcher: Any, args: Any, kwargs: Any) -> Any:
    if active_run() is None:
        return await wrapped(*args, **kwargs)
    method = args[0] if args else kwargs["method"]
    params = args[1] if len(args) > 1 else kwargs.get("params")
    options = args[2] if len(args) > 2 else kwargs.get("opts")
    heard = messages.find(dispatcher)
    if heard is None:
        return await call_async(lambda: _describe(method, params), lambda: wrapped(*args, **kwargs))

    async def live() -> Any:
        return await heard.follow(dispatched.next_id(dispatcher, options), lambda: wrapped(*args, **kwargs))

    with passed.giving(dispatched.giver(dispatcher, heard, options)):
        return await call_async(lambda: _describe(method, params), live)


async def _send_typed(wrapped: Any, session: Any, args: Any, kwargs: Any) -> Any:
    if active_run() is None:
        return await wrapped(*args, **kwargs)
    request = args[0] if args else kwargs["request"]

    def describe() -> FunctionCall:
        dumped = request.model_dump(by_alias=True, mode="json", exclude_none=True)
        return _describe(str(dumped.get("method")), dumped.get("params"))

    heard = messages.find(session)
    if heard is None:
        return await call_async(describe, lambda: wrapped(*args, **kwargs))

    async def live() -> Any:
        return await heard.follow(session._request_id, lambda: wrapped(*args, **kwargs))

    with passed.giving(received.giver(session, heard, kwargs.get("progress_callback"))):
        return await call_async(describe, live)
