"""Unit: uvicorn, and servers that use its `Config` and `Server` (its worker for gunicorn).

In a replay no port is opened: the application starts as its server would start it, gets the recorded request, and the
process ends.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.units.play import end_replay, hold_main, is_replay, play, stop_beside_main
from spanreplay.units.servers.hosting import make_units

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches


def install(module: Any, patches: Patches) -> None:
    """Patch one of uvicorn's modules."""
    part = module.__name__.rpartition(".")[2]
    if part == "config":
        patches.wrap(module.Config, "load", _load)
        patches.wrap(module.Config, "bind_socket", _bind)
    elif part == "server":
        patches.wrap(module.Server, "startup", _start)
        patches.wrap(module.Server, "main_loop", _serve)
    else:
        supervisor = module.Multiprocess if part == "multiprocess" else module.BaseReload
        patches.wrap(supervisor, "run", _supervise)


def _load(wrapped: Any, config: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    config.loaded_app = make_units(config.loaded_app, config.app)
    return result


def _bind(wrapped: Any, config: Any, args: Any, kwargs: Any) -> Any:
    return socket.socket() if is_replay() else wrapped(*args, **kwargs)


def _supervise(wrapped: Any, supervisor: Any, args: Any, kwargs: Any) -> Any:
    """In a replay, run one worker in this process."""
    if not is_replay():
        return wrapped(*args, **kwargs)
    from uvicorn.server import Server

    return Server(config=supervisor.config).run()


async def _start(wrapped: Any, server: Any, args: Any, kwargs: Any) -> Any:
    if not is_replay():
        return await wrapped(*args, **kwargs)
    hold_main()
    await server.lifespan.startup()
    stop_beside_main()
    server.should_exit = server.lifespan.should_exit
    server.started = not server.should_exit  # programs that run a server in a thread wait for it
    return None


async def _serve(wrapped: Any, server: Any, args: Any, kwargs: Any) -> Any:
    if not is_replay():
        with plumbing():  # the server checks ten times a second whether to exit; it doesn't in a replay
            return await wrapped(*args, **kwargs)
    state = getattr(server.lifespan, "state", None)
    await play(server.config.loaded_app, state)
    end_replay()
    return None
