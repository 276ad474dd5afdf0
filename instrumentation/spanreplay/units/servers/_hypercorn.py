"""Unit: hypercorn on asyncio or uvloop, over HTTP/1.1 and HTTP/2.

In a replay the worker runs in this process, without sockets: hypercorn starts the application itself, and instead of
waiting for shutdown the recorded request is passed to the application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spanreplay.units.play import end_replay, is_replay, play
from spanreplay.units.servers.hosting import make_units

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches
    from spanreplay.units.asgi import App, Receive, Send
    from spanreplay.units.asgi_messages import Scope


def install(module: Any, patches: Patches) -> None:
    """Patch one of hypercorn's modules."""
    if module.__name__ == "hypercorn.config":
        patches.wrap(module.Config, "create_sockets", _bind)
    elif module.__name__ == "hypercorn.run":
        patches.wrap(module, "run", _supervise)
    else:
        patches.wrap(module, "worker_serve", _serve)


class _Hosted:
    """Wraps hypercorn's application, which takes two arguments more than an ASGI application."""

    def __init__(self, app: Any, name: str) -> None:
        self._app = app
        self._name = name
        self.state: dict[str, Any] | None = None
        """The lifespan state that requests receive."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send, *tools: Any) -> None:
        if scope["type"] == "lifespan":
            self.state = scope.get("state")
        await make_units(self.bind(*tools), self._name)(scope, receive, send)

    def bind(self, *tools: Any) -> App:
        """Return the application as an ASGI application."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await self._app(scope, receive, send, *tools)

        return app


def _bind(wrapped: Any, config: Any, args: Any, kwargs: Any) -> Any:
    if not is_replay():
        return wrapped(*args, **kwargs)
    from hypercorn.config import Sockets

    return Sockets([], [], [])


def _supervise(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """In a replay, run one worker in this process."""
    if is_replay():
        config = args[0] if args else kwargs["config"]
        config.workers, config.use_reloader, config.pid_path = 0, False, None
    return wrapped(*args, **kwargs)


def _serve(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return _serve_hosted(wrapped, *args, **kwargs)


async def _serve_hosted(wrapped: Any, app: Any, config: Any, **options: Any) -> Any:
    hosted = _Hosted(app, getattr(config, "application_path", ""))
    if is_replay():
        import asyncio
        from functools import partial

        spawn = partial(asyncio.get_running_loop().run_in_executor, None)

        async def play_unit() -> None:
            await play(hosted.bind(spawn, _call_soon(asyncio.get_running_loop())), hosted.state)
            end_replay()

        options |= {"shutdown_trigger": play_unit}
    await wrapped(hosted, config, **options)


def _call_soon(loop: Any) -> Any:
    """Return a function like hypercorn's, with which a WSGI application's thread calls the loop."""
    import asyncio

    def call(function: Any, *args: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(function(*args), loop).result()

    return call
