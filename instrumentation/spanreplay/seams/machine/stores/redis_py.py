"""Seam: redis-py and its fork valkey-py, sync and async: each command is a call, above connections.

Connecting, handshakes, health checks, retries and scripts that are loaded again happen inside live calls. In a replay
no connection is made: commands, pipelines and messages of subscriptions are answered from the recording, with the
results that the client's own callbacks made of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import unwrap
from typing import Any, Final

from spanreplay.runtime.caller.caller import handing, is_ours
from spanreplay.runtime.calls.function_calls import call_async, call_sync
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.patches import Patches, require
from spanreplay.seams.machine.asked import asking_run
from spanreplay.seams.machine.databases.postgres import is_replayed_here
from spanreplay.seams.machine.stores import redis_calls, redis_clusters
from spanreplay.seams.machine.stores.redis_calls import CLIENTS, describe_command
from spanreplay.seams.machine.stores.redis_taking import find_taking, find_taking_of_subscription

_LISTENS: Final = "run_in_thread"
"""Method of subscriptions that starts a thread in which the caller's handlers run."""
_KEEPERS: Final = frozenset({"__init__", "initialize"})
"""Methods of clients that take a connection to keep it."""


def _note_unrecorded(what: str) -> None:
    """Note a use that is not recorded. Raises: ReplayMiss in a replay."""
    run = asking_run(CLIENTS)
    if run is not None:
        run.resolver.leave_out(f"{what} of Redis was used: its data is not recorded")


# ── Commands ────────────────────────────────────────────────────────────────────────────────────────
def _command(wrapped: Any, client: Any, args: Any, options: Any) -> Any:
    if not args or asking_run(CLIENTS) is None:
        return wrapped(*args, **options)
    taken = find_taking(client, args, options)
    if taken is not None:
        return taken[0].take(taken[1], lambda: _unseen(wrapped, args, options))
    return call_sync(lambda: describe_command(client, args, options), lambda: wrapped(*args, **options))


def _subscribe(wrapped: Any, pubsub: Any, args: Any, options: Any) -> Any:
    is_asked = asking_run(CLIENTS, is_kept=True) is not None
    return _command(wrapped, pubsub, args, options) if is_asked else wrapped(*args, **options)


async def _subscribe_async(wrapped: Any, pubsub: Any, args: Any, options: Any) -> Any:
    is_asked = asking_run(CLIENTS, is_kept=True) is not None
    return await (_command_async(wrapped, pubsub, args, options) if is_asked else wrapped(*args, **options))


def _unseen(wrapped: Any, args: Any, kwargs: Any) -> Any:
    with plumbing():
        return wrapped(*args, **kwargs)


async def _unseen_async(wrapped: Any, args: Any, kwargs: Any) -> Any:
    with plumbing():
        return await wrapped(*args, **kwargs)


async def _command_async(wrapped: Any, client: Any, args: Any, options: Any) -> Any:
    if not args or asking_run(CLIENTS) is None:
        return await wrapped(*args, **options)
    taken = find_taking(client, args, options)
    if taken is not None:
        return await taken[0].take_async(taken[1], lambda: _unseen_async(wrapped, args, options))
    return await call_async(lambda: describe_command(client, args, options), lambda: wrapped(*args, **options))


# ── Pipelines ───────────────────────────────────────────────────────────────────────────────────────
def _note_watching(pipeline: Any, args: Any) -> None:
    """Keep a pipeline's state as its connection would: whether it watches keys."""
    word = str(args[0]).upper()
    if word == "WATCH":
        pipeline.watching = True
    elif word in pipeline.UNWATCH_COMMANDS:
        pipeline.watching = False


def _immediate(wrapped: Any, pipeline: Any, args: Any, options: Any) -> Any:
    if not args or asking_run(CLIENTS) is None:
        return wrapped(*args, **options)
    result = call_sync(lambda: describe_command(pipeline, args, options), lambda: wrapped(*args, **options))
    _note_watching(pipeline, args)
    return result


async def _immediate_async(wrapped: Any, pipeline: Any, args: Any, options: Any) -> Any:
    if not args or asking_run(CLIENTS) is None:
        return await wrapped(*args, **options)
    result = await call_async(lambda: describe_command(pipeline, args, options), lambda: wrapped(*args, **options))
    _note_watching(pipeline, args)
    return result


def _raises(raise_on_error: bool = True) -> bool:
    return raise_on_error


def _is_sent(pipeline: Any) -> bool:
    return bool(pipeline.command_stack) or bool(getattr(pipeline, "watching", False))


def _describe(pipeline: Any, args: Any, kwargs: Any) -> Callable[[], Any]:
    stack, raises = list(pipeline.command_stack), _raises(*args, **kwargs)
    by_default = pipeline.is_transaction if hasattr(pipeline, "is_transaction") else pipeline.transaction
    is_transaction = bool(by_default or pipeline.explicit_transaction)
    return lambda: redis_calls.describe_pipeline(pipeline, stack, raises=raises, is_transaction=is_transaction)


def _execute(wrapped: Any, pipeline: Any, args: Any, kwargs: Any) -> Any:
    if not _is_sent(pipeline) or asking_run(CLIENTS) is None:
        return wrapped(*args, **kwargs)
    try:
        return call_sync(_describe(pipeline, args, kwargs), lambda: wrapped(*args, **kwargs))
    finally:
        pipeline.reset()  # as the client does; nothing is left to do where it has


async def _execute_async(wrapped: Any, pipeline: Any, args: Any, kwargs: Any) -> Any:
    if not _is_sent(pipeline) or asking_run(CLIENTS) is None:
        return await wrapped(*args, **kwargs)
    try:
        return await call_async(_describe(pipeline, args, kwargs), lambda: wrapped(*args, **kwargs))
    finally:
        await pipeline.reset()


# ── Subscriptions ───────────────────────────────────────────────────────────────────────────────────
def _is_waiting(block: bool = True, timeout: Any = 0, **_: Any) -> bool:
    return bool(block)


def _message(wrapped: Any, pubsub: Any, args: Any, kwargs: Any) -> Any:
    if asking_run(CLIENTS, is_kept=True) is None:
        return wrapped(*args, **kwargs)
    is_waiting = _is_waiting(*args, **kwargs)
    taken = find_taking_of_subscription(pubsub, is_waiting=is_waiting)
    if taken is not None:
        return taken[0].take(taken[1], lambda: _unseen(wrapped, args, kwargs))
    return call_sync(
        lambda: redis_calls.describe_message(pubsub, is_waiting=is_waiting), lambda: wrapped(*args, **kwargs)
    )


async def _message_async(wrapped: Any, pubsub: Any, args: Any, kwargs: Any) -> Any:
    if asking_run(CLIENTS, is_kept=True) is None:
        return await wrapped(*args, **kwargs)
    is_waiting = _is_waiting(*args, **kwargs)
    taken = find_taking_of_subscription(pubsub, is_waiting=is_waiting)
    if taken is not None:
        return await taken[0].take_async(taken[1], lambda: _unseen_async(wrapped, args, kwargs))
    return await call_async(
        lambda: redis_calls.describe_message(pubsub, is_waiting=is_waiting), lambda: wrapped(*args, **kwargs)
    )


async def _connect_async(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    """Connect subscriptions; nothing is recorded of it but its error."""
    if asking_run(CLIENTS, is_kept=True) is None:
        return await wrapped(*args, **kwargs)

    async def live() -> None:
        await wrapped(*args, **kwargs)

    return await call_async(lambda: redis_calls.describe_connect(client), live)


# ── Clusters ────────────────────────────────────────────────────────────────────────────────────────
async def _initialize_async(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    """Ask a cluster for its nodes; a replay asks nobody."""
    await _connect_async(wrapped, client, args, kwargs)
    return client


# ── Connections that a client keeps ─────────────────────────────────────────────────────────────────
class _Client:
    """What a pool tells of a client's connection."""

    def __init__(self, pool: Any) -> None:
        self.connection_pool = pool


def _is_kept(frame: Any) -> bool:
    """Whether a client itself, not the agent or a monitor, takes a connection from its pool to keep it."""
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or frame.f_code.co_name not in _KEEPERS:
        return False
    return hasattr(frame.f_locals.get("self"), "execute_command")


def _take(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    if asking_run(CLIENTS, is_kept=True) is None:
        return wrapped(*args, **kwargs)
    if not _is_kept(sys._getframe(1)):
        _note_unrecorded("a connection of a pool")
        return wrapped(*args, **kwargs)
    made: list[Any] = []
    is_replayed = is_replayed_here()

    def live() -> None:
        if not is_replayed:
            made.append(wrapped(*args, **kwargs))

    call_sync(lambda: redis_calls.describe_connect(_Client(pool)), live)
    return made[0] if made else _make_served(pool)


async def _take_async(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    if asking_run(CLIENTS, is_kept=True) is None:
        return await wrapped(*args, **kwargs)
    if not _is_kept(sys._getframe(1)):
        _note_unrecorded("a connection of a pool")
        return await wrapped(*args, **kwargs)
    made: list[Any] = []
    is_replayed = is_replayed_here()

    async def live() -> None:
        if not is_replayed:
            made.append(await wrapped(*args, **kwargs))

    await call_async(lambda: redis_calls.describe_connect(_Client(pool)), live)
    return made[0] if made else _make_served(pool)


def _make_served(pool: Any) -> Any:
    """Return a connection that is never connected: it belongs to nobody's pool."""
    connection = pool.make_connection()
    connection._spanreplay_served = True
    return connection


def _release(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    connection = args[0] if args else kwargs.get("connection")
    return None if hasattr(connection, "_spanreplay_served") else wrapped(*args, **kwargs)


async def _release_async(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    connection = args[0] if args else kwargs.get("connection")
    return None if hasattr(connection, "_spanreplay_served") else await wrapped(*args, **kwargs)


_Wrapper = Callable[[Any, Any, Any, Any], Any]
_SYNC: Final[dict[tuple[str, str], _Wrapper]] = {
    ("RedisCluster", "execute_command"): _command,
    ("RedisCluster", "pipeline"): redis_clusters.make_pipeline,
    ("ClusterPipeline", "execute_command"): redis_clusters.queue,
    ("ClusterPipeline", "reset"): redis_clusters.reset,
    ("ClusterPipeline", "execute"): redis_clusters.execute,
    ("Redis", "execute_command"): _command,
    ("Pipeline", "immediate_execute_command"): _immediate,
    ("Pipeline", "execute"): _execute,
    ("PubSub", "execute_command"): _subscribe,
    ("PubSub", "parse_response"): _message,
    ("ConnectionPool", "get_connection"): _take,
    ("BlockingConnectionPool", "get_connection"): _take,
    ("ConnectionPool", "release"): _release,
    ("BlockingConnectionPool", "release"): _release,
}
_ASYNC: Final[dict[tuple[str, str], _Wrapper]] = {
    ("RedisCluster", "initialize"): _initialize_async,
    ("RedisCluster", "execute_command"): _command_async,
    ("RedisCluster", "pipeline"): redis_clusters.make_pipeline,
    ("ClusterPipeline", "execute_command"): redis_clusters.queue,
    ("ClusterPipeline", "reset"): redis_clusters.reset,
    ("ClusterPipeline", "execute"): redis_clusters.execute_async,
    ("Redis", "execute_command"): _command_async,
    ("Pipeline", "immediate_execute_command"): _immediate_async,
    ("Pipeline", "execute"): _execute_async,
    ("PubSub", "execute_command"): _subscribe_async,
    ("PubSub", "parse_response"): _message_async,
    ("PubSub", "connect"): _connect_async,
    ("ConnectionPool", "get_connection"): _take_async,
    ("BlockingConnectionPool", "get_connection"): _take_async,
    ("ConnectionPool", "release"): _release_async,
    ("BlockingConnectionPool", "release"): _release_async,
}
"""Class and method of one of the client's modules → what replaces it."""


def install(module: Any, patches: Patches) -> None:
    """Patch one of the client's modules. Raises: AttributeError if it is not as expected."""
    table = _ASYNC if ".asyncio." in module.__name__ else _SYNC
    is_fork = module.__name__.startswith("valkey.")
    if module.__name__.endswith(".client"):
        require(module.Valkey if is_fork else module.Redis, "execute_command")
        require(module.Pipeline, "execute", "immediate_execute_command", "reset")
        require(module.PubSub, "execute_command", "parse_response")
    for (owner, name), wrapper in table.items():
        cls = getattr(module, owner.replace("Redis", "Valkey") if is_fork else owner, None)
        if cls is not None and cls.__module__ == module.__name__ and name in vars(cls):
            patches.wrap(cls, name, wrapper)
    listens = getattr(getattr(module, "PubSub", None), _LISTENS, None)
    if listens is not None:
        handing.add(unwrap(listens).__code__)
