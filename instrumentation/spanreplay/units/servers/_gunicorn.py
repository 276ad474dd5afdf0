"""Unit: gunicorn's workers of any class: sync, gthread, third-party.

In a replay no port is opened and no process is started: one worker, including its hooks, runs in this process, and
gets the recorded request instead of waiting for requests. Workers for ASGI applications (uvicorn's) have their own
server, which does the same.
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
    """End the start before forking workers of a preloaded application, so that they share it.

    Other workers have a start of their own. A program that runs gunicorn itself may have acted before.
    """
    if arbiter.cfg.preload_app:
        guard.guarded("the start of the workers", factory.begin_units)
    elif (process := factory.offered()) is not None:
        process.forks_workers = True
    return wrapped(*args, **kwargs)


class _Listener(socket.socket):
    """A socket without a port that replaces gunicorn's: some workers need one, or take it over."""

    FAMILY = socket.AF_INET

    @property
    def sock(self) -> socket.socket:
        """The socket itself, as on gunicorn's object."""
        return self


def _run(wrapped: Any, arbiter: Any, args: Any, kwargs: Any) -> Any:
    """In a replay, run one worker in this process."""
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
