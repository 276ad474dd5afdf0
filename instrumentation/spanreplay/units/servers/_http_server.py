"""Unit: servers based on the standard library's: wsgiref's (Django's `runserver`) and werkzeug's (Flask's).

A server that a program starts in a separate thread, next to other work, has no units: its requests belong to the run
of the process. In a replay of a unit no port is opened.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final

from spanreplay.runtime.lanes import current_lane, inside_lane, label_of
from spanreplay.runtime.run import active_run
from spanreplay.units.play import is_replay, is_replay_of_unit, play_wsgi
from spanreplay.units.wsgi import WsgiUnits, is_wsgi, name_app

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_DJANGOS: Final = "django.utils.autoreload"
_RELOADERS: Final = (_DJANGOS, "werkzeug._reloader")
_RELOADED: Final = ("RUN_MAIN", "WERKZEUG_RUN_MAIN")
"""Variables that the reloaders of Django and werkzeug set for the process that serves."""


def install(module: Any, patches: Patches) -> None:
    """Patch the server of one module, or a reloader."""
    if module.__name__ in _RELOADERS:
        patches.wrap(module, "run_with_reloader", _reload)
        return
    if module.__name__ == "werkzeug.serving":
        patches.wrap(module, "make_server", _make)
    server = module.BaseWSGIServer if module.__name__ == "werkzeug.serving" else module.WSGIServer
    patches.wrap(server, "server_bind", _bind)
    patches.wrap(server, "server_activate", _activate)
    patches.wrap(server, "serve_forever", _serve)


def _reload(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """In a replay, serve in this process instead of one started by the reloader; its lane is a thread's there."""
    run = active_run()
    if run is None or not is_replay_of_unit():
        return wrapped(*args, **kwargs)
    serve: Any = args[0] if args else kwargs["main_func"]
    with inside_lane(current_lane(run.root_lane).child(label_of("th", serve))):
        return serve(*args[1:], **kwargs) if wrapped.__module__ == _DJANGOS else serve()


def _make(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """In a replay, create the server without the reloader's socket, which doesn't exist."""
    if is_replay_of_unit():
        kwargs = {**kwargs, "fd": None}
    return wrapped(*args, **kwargs)


def _bind(wrapped: Any, server: Any, args: Any, kwargs: Any) -> Any:
    if not is_replay_of_unit():
        return wrapped(*args, **kwargs)
    server.server_name, server.server_port = str(server.server_address[0]), server.server_address[1]
    if hasattr(server, "setup_environ"):
        server.setup_environ()
    return None


def _activate(wrapped: Any, server: Any, args: Any, kwargs: Any) -> Any:
    return None if is_replay_of_unit() else wrapped(*args, **kwargs)


def _serve(wrapped: Any, server: Any, args: Any, kwargs: Any) -> Any:
    is_reloaded = any(os.environ.get(name) == "true" for name in _RELOADED)  # then the main thread watches files
    if threading.current_thread() is not threading.main_thread() and not is_reloaded:
        return wrapped(*args, **kwargs)
    place = "app" if hasattr(server, "app") else "application"
    app: Any = getattr(server, place, None)
    if is_replay():
        play_wsgi(app)
    if app is not None and is_wsgi(app) and not isinstance(app, WsgiUnits):
        setattr(server, place, WsgiUnits(app, name_app(app)))
    return wrapped(*args, **kwargs)
