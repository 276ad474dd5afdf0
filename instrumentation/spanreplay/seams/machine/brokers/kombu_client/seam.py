"""Seam: kombu as the agent uses it itself, above its transports: RabbitMQ, Redis and the others.

Publishing is one call, with connecting, declaring and trying again inside. So is each request of a channel, and each
wait for events with the messages that it brought. What Celery does with kombu for its own queue is not the agent's.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import read
from spanreplay.runtime.calls.function_calls import call_sync
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.calls.taking import leave
from spanreplay.runtime.patches import Patches, require
from spanreplay.runtime.reads import make_loose
from spanreplay.seams.machine.brokers.carried_out import carrying_out
from spanreplay.seams.machine.brokers.covered import covers
from spanreplay.seams.machine.brokers.kombu_client import taken
from spanreplay.seams.machine.brokers.kombu_client.channels import (
    NoConnection,
    ask,
    asks_now,
    describe,
    record_channel,
    serve_channel,
)
from spanreplay.seams.machine.brokers.kombu_client.values import show
from spanreplay.seams.machine.databases.postgres import is_replayed_here

_INSIDE: Final = "memory"
"""The transport whose messages do not leave the process."""
_FAILED: Final = ""
_CONNECTED: Final = make_loose("environment", "kombu.connection")
_NOT_COMPARED: Final = ("retry", "retry_policy", "timeout", "confirm_timeout", "declare")


def _is_inside(client: Any) -> bool:
    return str(client.transport_cls) == _INSIDE or str(client.transport_cls).startswith("kombu.transport.memory")


# ── Publishing ──────────────────────────────────────────────────────────────────────────────────────
def _client_of(producer: Any) -> Any:
    """Return the connection of a producer; None if it has none."""
    client = getattr(producer, "__connection__", None)
    if client is None:
        client = getattr(getattr(getattr(producer, "_channel", None), "connection", None), "client", None)
    return client


def _publish(wrapped: Any, producer: Any, args: Any, kwargs: Any) -> Any:
    client = _client_of(producer) if asks_now() else None
    if client is None or _is_inside(client) or getattr(getattr(producer, "_batch_local", None), "current", None):
        return wrapped(*args, **kwargs)

    def description() -> Any:
        bound = inspect.signature(wrapped).bind(*args, **kwargs)
        found = {**bound.arguments, **bound.arguments.get("properties", {})}
        found.pop("properties", None)
        own = {"exchange": producer.exchange, "routing_key": producer.routing_key}
        own.update({name: value for name, value in found.items() if value is not None})
        return describe("publish", Effect.WRITE, {n: show(v) for n, v in own.items() if n not in _NOT_COMPARED})

    return ask(client, description, lambda: wrapped(*args, **kwargs))


# ── Connections ─────────────────────────────────────────────────────────────────────────────────────
def _establish(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    """Connect; only a failure is a call: when a client connects depends on what the process did before."""
    if _is_inside(client) or not asks_now():
        return wrapped(*args, **kwargs)
    if is_replayed_here():
        if str(read(_CONNECTED, lambda: "1")) == _FAILED:
            call_sync(lambda: describe("connect", Effect.READ, {}), _refuse)
        return NoConnection(client)
    try:
        with carrying_out("tool:kombu.connect"):
            made = wrapped(*args, **kwargs)
    except BaseException as exc:
        error = exc
        read(_CONNECTED, lambda: _FAILED)

        def fail() -> None:
            raise error

        call_sync(lambda: describe("connect", Effect.READ, {}), fail)
        raise
    read(_CONNECTED, lambda: "1")
    return made


def _refuse() -> None:
    raise OSError("this connection is replayed")


def _channel(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    if _is_inside(client):
        return wrapped(*args, **kwargs)
    if isinstance(client.connection, NoConnection):
        return serve_channel(client, client._connection)
    if not asks_now():
        return record_channel(client, wrapped(*args, **kwargs))
    with carrying_out("tool:kombu.channel"):
        return record_channel(client, wrapped(*args, **kwargs))


def _drain(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    if _is_inside(client) or not asks_now():
        return wrapped(*args, **kwargs)
    client.connection  # noqa: B018 -- connects, which may be a call of its own
    if taken.is_taken(client):
        return taken.drain(client, lambda: wrapped(*args, **kwargs), kwargs)
    return ask(client, lambda: describe("drain_events", Effect.READ, {}), lambda: wrapped(*args, **kwargs))


def _close(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    if _is_inside(client) or not asks_now():
        return wrapped(*args, **kwargs)
    leave(client)
    with carrying_out("tool:kombu.close"):
        return wrapped(*args, **kwargs)


def _restore(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Give back at the end what was not acknowledged: the transport does it by itself."""
    with plumbing():
        return wrapped(*args, **kwargs)


@covers("kombu")
def install(module: Any, patches: Patches) -> None:
    """Patch one of kombu's modules. Raises: AttributeError if it is not as expected."""
    if module.__name__ == "kombu.messaging":
        patches.wrap(module.Producer, "publish", _publish)
        return
    if module.__name__ == "kombu.simple":
        taken.install_simple(module, patches)
        return
    if module.__name__ == "kombu.transport.virtual.base":
        patches.wrap(module.QoS, "restore_unacked_once", _restore)
        return
    require(module.Connection, "default_channel", "_connection", "transport")
    patches.wrap(module.Connection, "_establish_connection", _establish)
    patches.wrap(module.Connection, "channel", _channel)
    patches.wrap(module.Connection, "drain_events", _drain)
    patches.wrap(module.Connection, "_do_close_self", _close)
