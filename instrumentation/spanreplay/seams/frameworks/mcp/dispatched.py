"""What an MCP 2 client hears through its `JSONRPCDispatcher`, and the same messages given to it in a replay."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

from spanreplay.runtime.patches import Patches, require
from spanreplay.runtime.run import active_run
from spanreplay.seams.frameworks.mcp import messages
from spanreplay.seams.frameworks.mcp.messages import Heard

__all__ = ["giver", "install", "install_session", "next_id"]

_TOKEN: Final = "progressToken"  # noqa: S105 -- the name of a member


def install(module: Any, patches: Patches) -> None:
    """Patch `mcp.shared.jsonrpc_dispatcher`."""
    require(module.JSONRPCDispatcher, "_dispatch", "_spawn")
    patches.wrap(module.JSONRPCDispatcher, "_dispatch", _dispatch)
    patches.wrap(module.JSONRPCDispatcher, "_spawn", _spawn)


def install_session(module: Any, patches: Patches) -> None:
    """Patch `mcp.client.session`."""
    patches.wrap(module.ClientSession, "__init__", _init)
    patches.wrap(module.ClientSession, "_on_request", _on_request)


def _init(wrapped: Any, session: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    dispatcher = session._dispatcher
    if hasattr(dispatcher, "_spawn"):  # not a direct one, within the process
        dispatcher._spanreplay_session = session
        messages.make(dispatcher)


async def _dispatch(wrapped: Any, dispatcher: Any, args: Any, kwargs: Any) -> None:
    heard = messages.find(dispatcher)
    message = getattr(args[0], "message", None) if args else None
    if heard is not None and message is not None:
        messages.note(heard, message)
    await wrapped(*args, **kwargs)


def _spawn(wrapped: Any, dispatcher: Any, args: Any, kwargs: Any) -> None:
    heard = messages.find(dispatcher)
    if heard is None or not args:
        wrapped(*args, **kwargs)
        return
    handle, *rest = args
    wrapped(heard.in_lane(handle), *rest, **kwargs)


async def _on_request(wrapped: Any, session: Any, args: Any, kwargs: Any) -> Any:
    given = {**dict(zip(("dctx", "method", "params"), args, strict=False)), **kwargs}
    if active_run() is None or messages.find(session._dispatcher) is None:
        return await wrapped(*args, **kwargs)
    try:
        result = await wrapped(*args, **kwargs)
    except Exception as exc:
        await messages.answer(given["method"], given.get("params"), {"error": str(exc)})
        raise
    await messages.answer(given["method"], given.get("params"), {"result": result})
    return result


def next_id(dispatcher: Any, options: Mapping[str, Any] | None) -> Any:
    """Return the id that a dispatcher's next request gets."""
    supplied = (options or {}).get("request_id")
    return dispatcher._next_id + 1 if supplied is None else supplied


def giver(dispatcher: Any, heard: Heard, options: Mapping[str, Any] | None) -> Any:
    """Return what gives a recorded message to the dispatcher, during a request with these options."""
    on_progress = (options or {}).get("on_progress")

    async def give(message: dict[str, Any], *, is_heard: bool) -> None:
        import mcp_types as types
        from mcp.shared.message import SessionMessage

        kind = types.JSONRPCRequest if "id" in message else types.JSONRPCNotification
        item, token = SessionMessage(kind.model_validate(message)), (message.get("params") or {}).get(_TOKEN)
        session, is_ours = dispatcher._spanreplay_session, token is not None and token not in dispatcher._pending
        if is_ours:
            dispatcher._pending[token] = SimpleNamespace(on_progress=on_progress)
        given = heard.expect()
        try:
            await dispatcher._dispatch(item, session._on_request, session._on_notify, None)
        finally:
            if is_ours:
                dispatcher._pending.pop(token, None)
        if is_heard:
            await given.wait()

    return give
