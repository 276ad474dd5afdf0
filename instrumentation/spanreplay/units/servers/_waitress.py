"""Unit: waitress. In a replay no port is opened, and the application gets the recorded request."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from spanreplay.units.play import is_replay, play_wsgi
from spanreplay.units.wsgi import WsgiUnits, name_app

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_names: Final[weakref.WeakKeyDictionary[Any, str]] = weakref.WeakKeyDictionary()
"""Server → the name of its application, before the server wraps it in middleware."""


def install(module: Any, patches: Patches) -> None:
    """Patch the servers."""
    patches.wrap(module.BaseWSGIServer, "__init__", _make)
    patches.wrap(module.MultiSocketServer, "run", _run_all)
    patches.wrap(module.BaseWSGIServer, "run", _run)
    patches.wrap(module.BaseWSGIServer, "accept_connections", _open)
    patches.wrap(module.TcpWSGIServer, "bind_server_socket", _open)
    if hasattr(module, "UnixWSGIServer"):
        patches.wrap(module.UnixWSGIServer, "bind_server_socket", _open)


def _make(wrapped: Any, server: Any, args: Any, kwargs: Any) -> Any:
    _names[server] = name_app(args[0] if args else kwargs.get("application"))
    return wrapped(*args, **kwargs)


def _open(wrapped: Any, server: Any, args: Any, kwargs: Any) -> Any:
    return None if is_replay() else wrapped(*args, **kwargs)


def _run(wrapped: Any, server: Any, args: Any, kwargs: Any) -> Any:
    _take([server])
    return wrapped(*args, **kwargs)


def _run_all(wrapped: Any, servers: Any, args: Any, kwargs: Any) -> Any:
    _take([each for each in servers.map.values() if hasattr(each, "application")])
    return wrapped(*args, **kwargs)


def _take(servers: list[Any]) -> None:
    """Record each request of these servers, which share one application, or replay the recorded request."""
    if is_replay():
        play_wsgi(servers[0].application)
    for server in servers:
        if not isinstance(server.application, WsgiUnits):
            server.application = WsgiUnits(server.application, _names.get(server, ""))
