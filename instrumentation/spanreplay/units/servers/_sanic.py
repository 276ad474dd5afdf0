"""Unit: Sanic's own server, in one process or with workers. Each HTTP request and websocket session is its own run.

Under an ASGI server, its requests are that server's units. In a replay no port is opened and no worker is started: the
server's own process starts the application as a worker would, and its connection code gets the recorded request.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.units import factory
from spanreplay.units.http_exchange import PART
from spanreplay.units.play import end_replay, is_replay, play_each
from spanreplay.units.sanic_web.exchange import Exchange, RecordedExchange
from spanreplay.units.sanic_web.replay import ReplayedExchange, replay_request_of
from spanreplay.units.sanic_web.session import Session

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_WORKER: Final = "SANIC_WORKER_NAME"
"""The variable with which Sanic's main process names a worker."""


class _Serving:
    is_on = False
    """Whether Sanic's server is the purpose of this process, not a helper in somebody's loop (`create_server`)."""


def install(module: Any, patches: Patches) -> None:
    """Patch one of Sanic's modules."""
    part = module.__name__.rpartition(".")[2]
    if part == "http_protocol":
        patches.replace(module.HttpProtocol, "HTTP_CLASS", _watch(module.HttpProtocol.HTTP_CLASS))
        patches.wrap(module.HttpProtocolMixin, "_setup", _set_up)
        patches.wrap(module.HttpProtocol, "check_timeouts", _check_timeouts)
    elif part == "base_protocol":
        patches.wrap(module.SanicProtocol, "connection_lost", _lose)
    elif part == "websocket_protocol":
        patches.wrap(module.WebSocketProtocol, "websocket_handshake", _shake_hands)
    elif part == "error":
        for name in ("response", "log"):
            patches.wrap(module.ErrorHandler, name, _fail)
    elif part == "startup":
        patches.wrap(module.StartupMixin, "serve", _supervise)
        patches.wrap(module, "configure_socket", _bind)
        patches.wrap(module, "Manager", _make_manager)
    elif part == "multiplexer":
        patches.wrap(module.WorkerMultiplexer, "ack", _acknowledge)
    else:
        patches.wrap(module, "_serve_http_1", _serve)


# ── the server ──────────────────────────────────────────────────────────────────────────────────────
def _supervise(wrapped: Any, owner: Any, args: Any, kwargs: Any) -> Any:
    """In a replay, run one worker in this process."""
    if not is_replay():
        return wrapped(*args, **kwargs)
    startup: Any = import_module("sanic.mixins.startup")
    name = os.environ.get(_WORKER, "")
    if name:  # the recorded process was a worker; the replay ends with it
        given = {"monitor_publisher": _Nobody(), "worker_state": {name: {}}}
        startup.worker_serve = partial(_work, startup.worker_serve, given)
    return owner.serve_single(*args[:1], **{name: each for name, each in kwargs.items() if name == "primary"})


def _make_manager(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Return the process in which the server keeps the state of its workers; asking it is the server's own traffic."""
    with plumbing():
        manager = wrapped(*args, **kwargs)
    make, shut_down = manager.dict, manager.shutdown

    def make_dict(*args: Any, **kwargs: Any) -> Any:
        with plumbing():
            made = make(*args, **kwargs)
            len(made)  # connects
            return made

    def shut_down_plainly() -> None:
        with plumbing():
            shut_down()

    manager.dict, manager.shutdown = make_dict, shut_down_plainly
    return manager


def _acknowledge(wrapped: Any, multiplexer: Any, args: Any, kwargs: Any) -> Any:
    if is_replay():
        return None
    with plumbing():
        return wrapped(*args, **kwargs)


def _work(work: Callable[..., Any], given: Mapping[str, Any], **kwargs: Any) -> Any:
    return work(**{**kwargs, **given})


class _Nobody:
    """Where a replayed worker would tell its server's process something."""

    def send(self, message: Any) -> None:
        """No-op."""


def _bind(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return None if is_replay() else wrapped(*args, **kwargs)


def _serve(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    named = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    if named["run_async"]:
        return wrapped(*args, **kwargs)
    if not is_replay():
        _Serving.is_on = True
        return wrapped(*args, **kwargs)
    runners: Any = import_module("sanic.server.runners")
    app, loop, protocol = named["app"], named["loop"], named["protocol"]
    options = {**runners._build_protocol_kwargs(protocol, app.config), "loop": loop, "app": app, "connections": set()}
    if "websocket_ping_interval" in options:
        options["websocket_ping_interval"] = None  # there is no client to answer
    runners.setup_ext(app)
    loop.run_until_complete(app._startup())
    loop.run_until_complete(app._server_event("init", "before"))
    app.ack()
    loop.run_until_complete(app._server_event("init", "after"))
    app.set_serving(True)
    make_protocol = partial(protocol, signal=named["signal"], state=named["state"], unix=named["unix"], **options)
    loop.run_until_complete(play_each(partial(replay_request_of, make_protocol)))
    end_replay()
    return None


# ── requests ────────────────────────────────────────────────────────────────────────────────────────
def _watch(http_class: Any) -> Any:
    """Return the class of Sanic's object for a connection, with what comes in and goes out passed on to an exchange."""

    class Http(http_class):  # type: ignore[misc]  # Sanic rewrites its class's methods when it starts: theirs are called
        __slots__ = ("_write", "exchange")

        def __init__(self, protocol: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(protocol, *args, **kwargs)
            connection: Any = self
            self._write: Callable[[bytes], Awaitable[None]] = connection._send
            connection._send = self._note_and_send
            self.exchange: Exchange | None = None
            if is_replay() and ReplayedExchange.current is not None:
                ReplayedExchange.current.take(self)

        async def _note_and_send(self, data: bytes) -> None:
            exchange = self.exchange
            if exchange is not None:
                if isinstance(exchange, ReplayedExchange):
                    await exchange.before_part()
                exchange.note(exchange.send, bytes(data))
            await self._write(data)

        async def read(self) -> bytes | None:
            read: Callable[[], Awaitable[bytes | None]] = super().read
            if self.exchange is None:
                return await read()
            return await self.exchange.read(read)

        def init_for_request(self) -> None:
            self._end()
            super().init_for_request()

        async def http1(self) -> None:
            try:
                await super().http1()
            finally:
                self._end()

        def _end(self) -> None:
            exchange, self.exchange = self.exchange, None
            if exchange is not None:
                exchange.note(exchange.end)

    return Http


def _set_up(wrapped: Any, protocol: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    protocol.request_handler = partial(_handle, protocol.request_handler)
    return result


async def _handle(handle: Callable[[Any], Awaitable[None]], request: Any) -> None:
    http = request.stream
    exchange = guard.guarded(PART, _open, http, request)
    if exchange is None:
        await handle(request)
        return
    http.exchange = exchange
    await exchange.work(handle, request)


def _open(http: Any, request: Any) -> Exchange | None:
    if not hasattr(http, "exchange"):  # HTTP/3
        return None
    if is_replay():
        return ReplayedExchange.current
    run = factory.open_unit(request.app.name) if _Serving.is_on else None
    return None if run is None else RecordedExchange(run, http)


def _find_exchange(http: Any) -> Exchange | None:
    found: Exchange | None = getattr(http, "exchange", None)
    return found


def _fail(wrapped: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    """Note an exception of the application that the server handles."""
    request, exception = (*args, kwargs.get("request"), kwargs.get("exception"))[:2]
    exchange = _find_exchange(getattr(request, "stream", None))
    if exchange is not None and isinstance(exception, Exception):
        exchange.fail(exception)
    return wrapped(*args, **kwargs)


def _lose(wrapped: Any, protocol: Any, args: Any, kwargs: Any) -> Any:
    exchange = _find_exchange(getattr(protocol, "_http", None))
    if isinstance(exchange, RecordedExchange):
        exchange.note(exchange.lose)
    return wrapped(*args, **kwargs)


async def _shake_hands(wrapped: Any, protocol: Any, args: Any, kwargs: Any) -> Any:
    websocket = await wrapped(*args, **kwargs)
    exchange = _find_exchange(protocol._http)
    if exchange is None:
        return websocket
    exchange.session = Session(websocket, exchange, is_recorded=isinstance(exchange, RecordedExchange))
    exchange.note(exchange.session.accept)
    return exchange.session


def _check_timeouts(wrapped: Any, protocol: Any, args: Any, kwargs: Any) -> Any:
    """In a replay the recording states when a request was given up."""
    return None if is_replay() else wrapped(*args, **kwargs)
