"""Unit: Tornado's HTTP server with a `tornado.web.Application`. Each request is its own run.

A server in the main thread has units, unless its own process sends it requests. In a replay no port is opened; where
the program would listen, the application gets the recorded request.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import weakref
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.runtime.caller.caller import FOREIGN, classify
from spanreplay.runtime.lanes import Lane, inside_lane
from spanreplay.runtime.process.own_ports import was_asked
from spanreplay.runtime.run import active_run
from spanreplay.units import factory
from spanreplay.units.http_exchange import PART
from spanreplay.units.play import end_replay, is_replay, is_replay_of_unit, play_each
from spanreplay.units.start import has_units
from spanreplay.units.tornado_web.exchange import Exchange, Received, RecordedExchange, find_port
from spanreplay.units.tornado_web.replay import replay_request_of
from spanreplay.units.tornado_web.session import install_sessions

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

logger = logging.getLogger(__name__)

_WEB: Final = "tornado.web"
_services: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""Servers that were started in the main thread."""
_playing: Final[list[asyncio.Task[None]]] = []


def install(module: Any, patches: Patches) -> None:
    """Patch one of Tornado's modules."""
    if module.__name__ == "tornado.httpserver":
        patches.wrap(module.HTTPServer, "start_request", _start_request)
    elif module.__name__ == "tornado.websocket":
        install_sessions(module, patches)
    elif module.__name__ == "tornado.process":
        patches.wrap(module, "fork_processes", _fork)
    elif module.__name__ == "tornado.netutil":
        patches.wrap(module, "bind_sockets", _bind)
    elif module.__name__ == _WEB:
        patches.wrap(module.RequestHandler, "_execute", _execute)
        patches.wrap(module.RequestHandler, "log_exception", _fail)
    else:
        for name in ("listen", "add_sockets", "bind", "start"):
            patches.wrap(module.TCPServer, name, _open)


# ── several processes ───────────────────────────────────────────────────────────────────────────────
def _fork(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Fork after the start that all processes share; in a replay this process is the first of them."""
    if is_replay():
        return 0
    guard.guarded("the start of a server", factory.begin_units)
    return wrapped(*args, **kwargs)


def _bind(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """In a replay of a unit no port is opened."""
    return [] if is_replay_of_unit() else wrapped(*args, **kwargs)


# ── the server ──────────────────────────────────────────────────────────────────────────────────────
def _open(wrapped: Any, server: Any, args: Any, kwargs: Any) -> Any:
    """Let a server listen; in a replay of its units, it gets the recorded request instead."""
    if threading.current_thread() is not threading.main_thread() or not _is_of_application(server):
        return wrapped(*args, **kwargs)
    run = active_run()
    if not is_replay():
        guard.guarded(PART, _services.add, server)
    elif run is not None and is_replay() and (is_replay_of_unit() or has_units(run.resolver.answers.recording)):
        if not _playing:
            ioloop: Any = import_module("tornado.ioloop")
            with inside_lane(Lane(f"{run.root_lane.path}/units")):  # the program's own tasks keep their numbers
                _playing.append(ioloop.IOLoop.current().asyncio_loop.create_task(_play(server)))
        return None
    return wrapped(*args, **kwargs)


def _is_of_application(server: Any) -> bool:
    """Whether a server's application is the program's: those of other servers (Jupyter) have classes of their own."""
    web = sys.modules.get(_WEB)
    application = getattr(server, "request_callback", None)
    if web is None or not isinstance(application, web.Application):
        return False
    if type(application) is web.Application:
        return True
    file = getattr(sys.modules.get(type(application).__module__), "__file__", None)
    return not isinstance(file, str) or classify(file) != FOREIGN


async def _play(server: Any) -> None:
    try:
        await play_each(partial(replay_request_of, server))
    except Exception:
        logger.exception("the recorded request could not be given to the application")
    end_replay()


def _start_request(wrapped: Any, server: Any, args: Any, kwargs: Any) -> Any:
    named = {**dict(zip(("server_conn", "request_conn"), args, strict=False)), **kwargs}
    connection = named["request_conn"]
    if isinstance(connection, Exchange) or is_replay() or not guard.guarded(PART, _is_unit, server, connection):
        return wrapped(*args, **kwargs)
    exchange = RecordedExchange(connection)
    return Received(wrapped(named["server_conn"], exchange), exchange)


def _is_unit(server: Any, connection: Any) -> bool:
    return server in _services and not was_asked(find_port(connection))


async def _execute(wrapped: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    """Run a handler; the request lasts until it returns, even if the response is complete before."""
    exchange = handler.request.connection
    if not isinstance(exchange, Exchange):
        return await wrapped(*args, **kwargs)
    try:
        return await wrapped(*args, **kwargs)
    finally:
        exchange.leave()


def _fail(wrapped: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    """Note an exception of a handler, which the application turns into a response."""
    exchange, value = handler.request.connection, kwargs.get("value", args[1] if len(args) > 1 else None)
    if isinstance(exchange, Exchange) and not isinstance(value, sys.modules[_WEB].HTTPError):
        exchange.raised = value
    return wrapped(*args, **kwargs)
