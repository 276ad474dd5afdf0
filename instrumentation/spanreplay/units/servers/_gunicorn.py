"""Unit: gunicorn's workers, whatever their class: sync, gthread, those of others.

In a replay no port is opened and no process is started: what one worker does is done in this process, its hooks
included, and instead of waiting for requests it is given the recorded one. A worker of ASGI applications (uvicorn's)
has a server of its own, which does the same.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from spanreplay.model import guard
from spanreplay.units import factory
from spanreplay.units.play import is_replay, play_wsgi
from spanreplay.units.wsgi import WsgiUnits, is_wsgi

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches


def install(module: Any, patches: Patches) -> None:
    """Patch one of gunicorn's modules."""
    if module.__name__ == "gunicorn.arbiter":
        patches.wrap(module.Arbiter, "run", _run)
        patches.wrap(module.Arbiter, "spawn_worker", _spawn)
    else:
        patches.wrap(module.Worker, "load_wsgi", _load)


def _load(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    factory.name_units(str(worker.cfg.proc_name))
    if not is_replay() and is_wsgi(worker.wsgi):
        worker.wsgi = WsgiUnits(worker.wsgi, str(worker.cfg.proc_name))
    return result


def _spawn(wrapped: Any, arbiter: Any, args: Any, kwargs: Any) -> Any:
    """Let workers that are forked after the application was loaded share its start."""
    if arbiter.cfg.preload_app:
        guard.guarded("the start of the workers", factory.begin_units)
    return wrapped(*args, **kwargs)


class _Listener(socket.socket):
    """A socket without a port, in the place of gunicorn's own: some workers do nothing without one, or take it over."""

    FAMILY = socket.AF_INET

    @property
    def sock(self) -> socket.socket:
        """What gunicorn's object holds."""
        return self


def _run(wrapped: Any, arbiter: Any, args: Any, kwargs: Any) -> Any:
    """Do in this process what the recorded one of several workers did."""
    if not is_replay():
        return wrapped(*args, **kwargs)
    config = arbiter.cfg
    config.on_starting(arbiter)
    sockets = [_Listener()]
    worker = arbiter.worker_class(1, os.getppid(), sockets, arbiter.app, arbiter.timeout / 2.0, config, arbiter.log)
    config.pre_fork(arbiter, worker)
    config.post_fork(arbiter, worker)
    run = worker.run

    def work() -> None:
        if is_wsgi(worker.wsgi):
            play_wsgi(worker.wsgi)
        run()

    worker.run = work
    return worker.init_process()
