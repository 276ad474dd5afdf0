"""What an MCP 1 client hears in its receive loop, and the same messages given to that loop in a replay."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run
from spanreplay.seams.frameworks.mcp import messages
from spanreplay.seams.frameworks.mcp.messages import Heard

__all__ = ["feeds", "giver", "install"]

feeds: Final[WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()
"""Stream that a session reads in a replay → the stream that leads into it."""
_TOKEN: Final = "progressToken"  # noqa: S105 -- the name of a member


def install(module: Any, patches: Patches) -> None:
    """Patch `mcp.client.session`."""
    session = module.ClientSession
    patches.wrap(session, "__init__", _init)
    patches.wrap(session, "_receive_loop", _receive_loop)
    patches.wrap(session, "_send_response", _send_response)


def _init(wrapped: Any, session: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    messages.make(session)


async def _receive_loop(wrapped: Any, session: Any, args: Any, kwargs: Any) -> None:
    heard, stream = messages.find(session), session._read_stream
    if heard is not None and hasattr(stream, "__dict__"):
        real = stream.receive
        dealt_with: Any = None

        async def receive() -> Any:
            nonlocal dealt_with
            if dealt_with is not None:
                dealt_with.settle()
            item = await real()
            message = getattr(getattr(item, "message", None), "root", None)
            messages.note(heard, message)
            dealt_with = (heard.message if stream in feeds else heard.begin()) if hasattr(message, "method") else None
            return item

        stream.receive = receive
    await wrapped(*args, **kwargs)


async def _send_response(wrapped: Any, session: Any, args: Any, kwargs: Any) -> None:
    given = {**dict(zip(("request_id", "response"), args, strict=False)), **kwargs}
    responder = getattr(session, "_in_flight", {}).get(given.get("request_id"))
    if active_run() is not None and responder is not None and messages.find(session) is not None:
        asked = responder.request.model_dump(by_alias=True, mode="json", exclude_none=True)
        said = given["response"].model_dump(by_alias=True, mode="json", exclude_none=True)
        await messages.answer(str(asked.get("method")), asked.get("params"), {"result": said})
    await wrapped(*args, **kwargs)


def giver(session: Any, heard: Heard, on_progress: Any) -> Any:
    """Return what gives a recorded message to the session, during a request with this callback."""

    async def give(message: dict[str, Any], *, is_heard: bool) -> None:
        from mcp import types
        from mcp.shared.message import SessionMessage

        feed, token = feeds.get(session._read_stream), (message.get("params") or {}).get(_TOKEN)
        if feed is None:
            return
        if token is not None and on_progress is not None:
            session._progress_callbacks[token] = on_progress
        model: Any = types.JSONRPCMessage  # mcp 2 has another of this name
        heard.expect()
        given = heard.begin()  # it takes a moment until the loop takes it
        await feed.send(SessionMessage(model.model_validate(message)))
        if is_heard:
            await given.wait()

    return give
