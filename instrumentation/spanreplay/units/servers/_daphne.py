"""Unit: daphne, the server of Django Channels.

In a replay its reactor is not started and no port is opened: the event loop that Twisted would run passes the recorded
request to the application, and the process ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spanreplay.units.play import end_replay, is_replay, play
from spanreplay.units.servers.hosting import make_units

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches


class _Stated:
    path = ""
    """The application path from the command line, for the server that is created next."""


def install(module: Any, patches: Patches) -> None:
    """Patch one of daphne's modules."""
    if module.__name__ == "daphne.cli":
        patches.wrap(module, "import_by_path", _note_path)
    else:
        patches.wrap(module.Server, "__init__", _make)
        patches.wrap(module.Server, "run", _run)


def _note_path(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    _Stated.path = args[0] if args else kwargs["path"]
    return wrapped(*args, **kwargs)


def _make(wrapped: Any, server: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    server.application = make_units(server.application, _Stated.path)


def _run(wrapped: Any, server: Any, args: Any, kwargs: Any) -> Any:
    if not is_replay():
        return wrapped(*args, **kwargs)
    import asyncio

    from twisted.internet import reactor

    loop: Any = reactor._asyncioEventloop
    asyncio.set_event_loop(loop)
    if server.ready_callable:
        server.ready_callable()
    loop.run_until_complete(play(server.application, None))
    end_replay()
    return None
