"""Unit: cheroot, and CherryPy, whose server it is. In a replay no port is opened.

A server that a program starts in a separate thread, next to other work, has no units: its requests belong to the run
of the process. CherryPy always starts its server in a thread, while the main thread waits for signals.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from spanreplay.runtime.process.outside_io import unwatched
from spanreplay.units.play import is_replay, play_wsgi
from spanreplay.units.wsgi import WsgiUnits, is_wsgi, name_app

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_TREE: Final = "cherrypy"
"""The package of the object that passes requests to CherryPy's applications; the program gives the units their name."""
_started_by_cherrypy: Final[set[int]] = set()
"""The servers that CherryPy starts, by `id`."""


def install(module: Any, patches: Patches) -> None:
    """Patch the server, or CherryPy's adapter for servers."""
    if module.__name__ == "cheroot.server":
        patches.wrap(module.HTTPServer, "prepare", _prepare)
    elif module.__name__ == "cherrypy.process.wspbus":
        patches.wrap(module.Bus, "block", _block)
    else:
        patches.wrap(module.ServerAdapter, "start", _start)
        patches.wrap(module.ServerAdapter, "stop", _stop)


def _start(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> Any:
    """Start a server in its thread; it connects to the port to see whether it is free, but not in a replay."""
    _started_by_cherrypy.add(id(adapter.httpserver))
    if not is_replay():
        with unwatched():
            return wrapped(*args, **kwargs)
    thread = threading.Thread(target=adapter._start_http_thread)
    thread.name = f"HTTPServer {thread.name}"
    thread.start()
    adapter.running = True
    return None


def _stop(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> Any:
    with unwatched():
        return wrapped(*args, **kwargs)


def _block(wrapped: Any, bus: Any, args: Any, kwargs: Any) -> Any:
    """In a replay, wait without asking ten times a second whether to end: every answer would wait for that thread."""
    if is_replay() and _started_by_cherrypy:
        threading.Event().wait()
    return wrapped(*args, **kwargs)


def _prepare(wrapped: Any, server: Any, args: Any, kwargs: Any) -> Any:
    """Record each request of the server's application, or replay the recorded request."""
    app = getattr(server, "wsgi_app", None)
    is_purpose = threading.current_thread() is threading.main_thread() or id(server) in _started_by_cherrypy
    if app is None or not is_wsgi(app) or not is_purpose:
        return wrapped(*args, **kwargs)
    if is_replay():
        play_wsgi(app)
    if not isinstance(app, WsgiUnits):
        is_tree = type(app).__module__.partition(".")[0] == _TREE
        server.wsgi_app = WsgiUnits(app, "" if is_tree else name_app(app))
    return wrapped(*args, **kwargs)
