"""Seam: MCP transports. Recording: their HTTP requests are plumbing. Replay: nothing is started or connected.

A server handles each message in the context in which its transport sent it; work that it does for a message is not
plumbing. In a replay a session talks to in-memory streams that never answer; its requests are answered above them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.runtime.calls.open_call import no_plumbing, plumbing
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import active_run
from spanreplay.seams.frameworks.mcp import received

_TRANSPORTS: Final = {
    "stdio_client": 2,
    "sse_client": 2,
    "streamable_http_client": 2,
    "streamablehttp_client": 3,
}
"""Function → the number of values it yields in mcp 1 (streams, and for streamablehttp_client a session ID callback)."""


def install(module: Any, patches: Patches) -> None:
    """Patch the transports that a module defines; in mcp 2 also servers, and streams that carry a sender's context."""
    if module.__name__ == "mcp.server.runner":
        for name in ("_on_request", "_on_notify"):
            patches.wrap(module.ServerRunner, name, _serve)
        return
    if module.__name__ == "mcp.shared._context_streams":
        patches.wrap(module.ContextSendStream, "send", _send)
        return
    for name, yields in _TRANSPORTS.items():
        function = vars(module).get(name)
        if function is not None and getattr(function, "__module__", "") == module.__name__:
            patches.wrap(module, name, _wrapper(yields, is_program=name == "stdio_client"))


async def _send(wrapped: Any, stream: Any, args: Any, kwargs: Any) -> Any:
    if active_run() is None:
        return await wrapped(*args, **kwargs)
    with plumbing():  # the transport makes its request in the context captured here
        return await wrapped(*args, **kwargs)


async def _serve(wrapped: Any, runner: Any, args: Any, kwargs: Any) -> Any:
    with no_plumbing():
        return await wrapped(*args, **kwargs)


def _wrapper(yields: int, *, is_program: bool) -> Any:
    def open_transport(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        run = active_run()
        if run is None:
            return wrapped(*args, **kwargs)
        if is_program and run.written is not None:
            guard.guarded("what a program can read", run.written.show_to_program)
        if not run.resolver.connects and not run.resolver.answers.plan.may_go_live("mcp:tools/call"):
            return _dead(yields)
        return _live(wrapped(*args, **kwargs))

    return open_transport


@asynccontextmanager
async def _live(inner: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
    with plumbing():  # inherited by the tasks that the transport starts now
        streams = await inner.__aenter__()
    try:
        yield streams
    except BaseException as exc:
        with plumbing():
            if not await inner.__aexit__(type(exc), exc, exc.__traceback__):
                raise
    else:
        with plumbing():  # ending the session is a request too
            await inner.__aexit__(None, None, None)


@asynccontextmanager
async def _dead(yields: int) -> AsyncIterator[Any]:
    import anyio

    to_session, from_server = anyio.create_memory_object_stream[Any](0)
    to_server, from_session = anyio.create_memory_object_stream[Any](0)

    async def drain() -> None:
        async for _ in from_session:
            pass

    async with anyio.create_task_group() as group:
        group.start_soon(drain)
        received.feeds[from_server] = to_session
        try:
            yield (from_server, to_server) if yields == 2 else (from_server, to_server, lambda: None)
        finally:
            group.cancel_scope.cancel()
            for stream in (to_session, from_server, to_server, from_session):
                stream.close()
