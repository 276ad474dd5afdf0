"""Seam: pymongo, sync and async (also below motor, beanie and mongoengine).

A command with its reply is one call, at the connection that sends it. Above it everything is pymongo's own, in a replay
too: cursors, bulk writes, retries, transactions. Below it nothing is a call: connecting, authentication, monitoring.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from spanreplay.model.own_threads import unnumbered_threads
from spanreplay.runtime.agent_patches import read
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.patches import Patches, require
from spanreplay.runtime.reads import source
from spanreplay.seams.machine.databases.mongodb import commands, servers, stand_ins, steps
from spanreplay.seams.machine.databases.mongodb.commands import calling_run
from spanreplay.seams.machine.databases.mongodb.steps import Step, Way
from spanreplay.seams.machine.databases.postgres import is_replayed_here

_IDS: Final = source("random", "bson.ObjectId", pack=bytes.hex, unpack=bytes.fromhex)


@contextmanager
def _background() -> Iterator[None]:
    """A block whose threads and tasks work for the client alone."""
    with plumbing(), unnumbered_threads():
        yield


# ── Names of clusters, and servers ──────────────────────────────────────────────────────────────────
_UNKNOWN: Final = '[["unknown.invalid",27017]]'
"""Stands for the servers behind a name (`mongodb+srv://`) that another run looked up: a selection tells more."""


def _read_hosts(text: str) -> list[tuple[str, int]]:
    return [(host, port) for host, port in json.loads(text)]


async def _read_hosts_async(text: str) -> list[tuple[str, int]]:
    return _read_hosts(text)


async def _read_async(text: str) -> Any:
    return json.loads(text)


def _looking_up(step: Step, way: Way, *, is_async: bool) -> Any:
    def look_up(wrapped: Any, resolver: Any, args: Any, kwargs: Any) -> Any:
        return (steps.make_async if is_async else steps.make)(step, way, lambda: wrapped(*args, **kwargs))

    return look_up


def _install_resolver(module: Any, patches: Patches, *, is_async: bool) -> None:
    hosts = Way(json.dumps, _read_hosts_async if is_async else _read_hosts, lambda: _UNKNOWN)
    options = Way(json.dumps, _read_async if is_async else json.loads, lambda: "null")
    cls = module._SrvResolver
    patches.wrap(cls, "get_hosts", _looking_up(steps.HOSTS, hosts, is_async=is_async))
    patches.wrap(cls, "get_options", _looking_up(steps.OPTIONS, options, is_async=is_async))


def _selecting(show: Callable[[Any, str], Any], make: Any) -> Any:
    def select(wrapped: Any, topology: Any, args: Any, kwargs: Any) -> Any:
        way = Way(
            lambda server: servers.describe_server(server.description),
            lambda text: show(topology, text),
            lambda: servers.default_server(topology),
            str(kwargs.get("operation", args[1] if len(args) > 1 else "")),
        )
        return make(steps.SELECT, way, lambda: wrapped(*args, **kwargs))

    return select


# ── Connections ─────────────────────────────────────────────────────────────────────────────────────
def _checking_out(make: Any) -> Any:
    def check_out(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
        way = Way(lambda _: _HAD, lambda _: wrapped(*args, **kwargs), lambda: _HAD)
        return make(steps.CONNECT, way, lambda: wrapped(*args, **kwargs))

    return check_out


_HAD: Final = "0"
"""The text of a checkout that had a connection."""


def _install_pool(module: Any, patches: Patches, *, is_async: bool) -> None:
    cls = module.AsyncConnection if is_async else module.Connection
    require(cls, "hello", "close_conn", "authenticate")
    patches.wrap(cls, "command", _handshake_async if is_async else _handshake)
    patches.wrap(module.Pool, "connect", _connect_async if is_async else _connect)
    patches.wrap(module.Pool, "_get_conn", _checking_out(steps.make_async if is_async else steps.make))
    patches.wrap(module.Pool, "_perished", _perished_async if is_async else _perished)
    found = [name for name in vars(module) if name.startswith(_CONFIGURED)]
    if not found:
        raise AttributeError(f"{module.__name__} has no {_CONFIGURED!r}…", name=_CONFIGURED, obj=module)
    for name in found:
        patches.wrap(module, name, _open_socket_async if is_async else _open_socket)
    commands.install(module, patches, is_async=is_async)


_CONFIGURED: Final = "_configured_"
"""Beginning of the names of the functions that open a socket."""


def _connect(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    with plumbing():
        return commands.own(wrapped(*args, **kwargs))


async def _connect_async(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    with plumbing():
        return commands.own(await wrapped(*args, **kwargs))


def _open_socket(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return stand_ins.make_socket() if is_replayed_here() else wrapped(*args, **kwargs)


async def _open_socket_async(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return stand_ins.make_socket() if is_replayed_here() else await wrapped(*args, **kwargs)


def _handshake(wrapped: Any, connection: Any, args: Any, kwargs: Any) -> Any:
    if not connection.ready and stand_ins.is_stand_in(connection):
        return stand_ins.hello_of(connection)
    return wrapped(*args, **kwargs)


async def _handshake_async(wrapped: Any, connection: Any, args: Any, kwargs: Any) -> Any:
    if not connection.ready and stand_ins.is_stand_in(connection):
        return stand_ins.hello_of(connection)
    return await wrapped(*args, **kwargs)


def _authenticate(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    if not stand_ins.is_stand_in(args[1]):
        wrapped(*args, **kwargs)


async def _authenticate_async(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    if not stand_ins.is_stand_in(args[1]):
        await wrapped(*args, **kwargs)


def _is_usable(connection: Any) -> bool:
    """Whether a kept connection fits: live code needs a real one, and code that is replayed one that was never made."""
    return stand_ins.is_stand_in(connection) == is_replayed_here()


def _perished(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    connection = args[0]
    if _is_usable(connection):
        if not stand_ins.is_stand_in(connection):
            return wrapped(*args, **kwargs)
        if not pool.stale_generation(connection.generation, connection.service_id):
            return False
    connection.close_conn(None)
    return True


async def _perished_async(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    connection = args[0]
    if _is_usable(connection):
        if not stand_ins.is_stand_in(connection):
            return await wrapped(*args, **kwargs)
        if not pool.stale_generation(connection.generation, connection.service_id):
            return False
    await connection.close_conn(None)
    return True


# ── Work of the client's own ────────────────────────────────────────────────────────────────────────
def _open_executor(wrapped: Any, executor: Any, args: Any, kwargs: Any) -> Any:
    if is_replayed_here():
        return None
    with _background():
        return wrapped(*args, **kwargs)


def _run_executor(wrapped: Any, executor: Any, args: Any, kwargs: Any) -> Any:
    with _background():
        return wrapped(*args, **kwargs)


async def _run_executor_async(wrapped: Any, executor: Any, args: Any, kwargs: Any) -> Any:
    with plumbing():
        return await wrapped(*args, **kwargs)


def _end_sessions(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    with plumbing():  # in a replay, a listener is told of it as well
        return wrapped(*args, **kwargs)


async def _end_sessions_async(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    with plumbing():
        return await wrapped(*args, **kwargs)


def _kill_cursors(wrapped: Any, client: Any, args: Any, kwargs: Any) -> None:
    """Kill the cursors that were freed before they were read to their end: when that happens, depends on timing."""
    if is_replayed_here():
        return
    with plumbing():
        wrapped(*args, **kwargs)


async def _kill_cursors_async(wrapped: Any, client: Any, args: Any, kwargs: Any) -> None:
    if is_replayed_here():
        return
    with plumbing():
        await wrapped(*args, **kwargs)


def _number(wrapped: Any, settings: Any, args: Any, kwargs: Any) -> Any:
    """Number a client's topology: whether a client is made depends on what the process did before."""
    with plumbing():
        return wrapped(*args, **kwargs)


# ── Ids ─────────────────────────────────────────────────────────────────────────────────────────────
def _install_ids(cls: Any, patches: Patches) -> None:
    require(cls, "binary")
    real = cls.__init__

    def init(self: Any, oid: Any = None) -> None:  # no wrapper of wrapt: bson makes each id that it decodes here
        real(self, oid)
        if oid is None and calling_run() is not None:
            own = self.binary
            given = read(_IDS, lambda: own)
            if given != own:
                real(self, given)

    init.__name__, init.__qualname__, init.__doc__ = real.__name__, real.__qualname__, real.__doc__
    init.__module__ = real.__module__
    patches.replace(cls, "__init__", init)


def install(module: Any, patches: Patches) -> None:
    """Patch one module of pymongo or bson."""
    if module.__name__ == "pymongo.pool":
        if module.Pool.__module__ == module.__name__:
            raise AttributeError("before 4.9, it sends without a function of its own", name="sendall", obj=module)
        return
    is_async = ".asynchronous." in module.__name__
    name = module.__name__.rpartition(".")[2]
    if name == "objectid":
        _install_ids(module.ObjectId, patches)
    elif name == "settings":
        patches.wrap(module.TopologySettings, "__init__", _number)
    elif name == "topology":
        select = _selecting(stand_ins.show_server, steps.make)
        select_async = _selecting(stand_ins.show_server_async, steps.make_async)
        patches.wrap(module.Topology, "select_server", select_async if is_async else select)
    elif name == "srv_resolver":
        _install_resolver(module, patches, is_async=is_async)
    elif name == "pool":
        _install_pool(module, patches, is_async=is_async)
    elif name == "auth":
        patches.wrap(module, "authenticate", _authenticate_async if is_async else _authenticate)
    elif name == "network":
        commands.install(module, patches, is_async=is_async)
    elif name == "mongo_client":
        cls = module.AsyncMongoClient if is_async else module.MongoClient
        patches.wrap(cls, "_end_sessions", _end_sessions_async if is_async else _end_sessions)
        patches.wrap(cls, "_process_kill_cursors", _kill_cursors_async if is_async else _kill_cursors)
    else:
        _install_executors(module, patches, is_async=is_async)


def _install_executors(module: Any, patches: Patches, *, is_async: bool) -> None:
    patches.wrap(module.PeriodicExecutor, "open", _open_executor)
    patches.wrap(module.PeriodicExecutor, "_run", _run_executor_async if is_async else _run_executor)
    other = getattr(module, "AsyncPeriodicExecutor", None)
    if other is not None:
        patches.wrap(other, "open", _open_executor)
        patches.wrap(other, "_run", _run_executor_async)
