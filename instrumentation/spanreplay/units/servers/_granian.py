"""Unit: granian, over ASGI and WSGI.

In a replay no worker is started and no port is opened: the server's own process loads the application, starts it as a
worker would, and passes it the recorded request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spanreplay.model import guard
from spanreplay.units import factory
from spanreplay.units.play import end_replay, is_replay, play, play_wsgi
from spanreplay.units.servers.hosting import make_units
from spanreplay.units.wsgi import WsgiUnits, is_wsgi

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches


class _Stated:
    target = ""
    """The target from the command line; forked workers inherit it."""


def install(module: Any, patches: Patches) -> None:
    """Patch one of granian's modules."""
    part = module.__name__.rpartition(".")[2]
    if part == "common":
        patches.wrap(module.AbstractServer, "serve", _serve)
    else:
        patches.wrap(module, "_callback_wrapper", _host_wsgi if part == "wsgi" else _host)


def _host(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    guard.guarded("a worker", factory.offer_in_member)
    app, *others = args
    return wrapped(make_units(app, _Stated.target), *others, **kwargs)


def _host_wsgi(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    guard.guarded("a worker", factory.offer_in_member)
    app, *others = args
    return wrapped(WsgiUnits(app, _Stated.target) if is_wsgi(app) else app, *others, **kwargs)


def _serve(wrapped: Any, server: Any, args: Any, kwargs: Any) -> Any:
    _Stated.target = str(server.target)
    interface = str(getattr(server.interface, "value", server.interface))
    if not is_replay() or interface not in ("asgi", "asginl", "wsgi"):
        return wrapped(*args, **kwargs)
    from granian._internal import load_target

    app: Any = load_target(server.target, wd=server.working_dir, factory=server.factory)
    if interface == "wsgi":
        play_wsgi(app)
    from granian._loops import loops

    loops.get(server.loop).run_until_complete(_play(app, has_lifespan=interface == "asgi"))
    end_replay()
    return None


async def _play(app: Any, *, has_lifespan: bool) -> None:
    state: dict[str, Any] = {}
    if has_lifespan:
        from granian.asgi import LifespanProtocol

        lifespan: Any = LifespanProtocol(app)  # type: ignore[no-untyped-call]
        await lifespan.startup()
        state = lifespan.state
    await play(app, state)
