"""Seam: aio-pika, above aiormq: each request to the broker and each message that it delivers is a call.

Connections, handshakes, heartbeats and what robust connections restore by themselves are live while recording. In a
replay, aio-pika's and aiormq's own code runs above a stream that is connected to nobody.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.context_variables import holding
from spanreplay.runtime.patches import Patches, require
from spanreplay.seams.machine.brokers.aio_pika_client.answers import ask, asks_now, hear, told_of_server
from spanreplay.seams.machine.brokers.aio_pika_client.consuming import (
    Consumer,
    channels_of,
    close_iterator,
    feeds,
    take_next,
)
from spanreplay.seams.machine.brokers.aio_pika_client.frames import is_message, make_frame, show
from spanreplay.seams.machine.brokers.aio_pika_client.notices import end_notices, hear_of
from spanreplay.seams.machine.brokers.aio_pika_client.stand_ins import StandInTransport
from spanreplay.seams.machine.brokers.bound import bind
from spanreplay.seams.machine.brokers.covered import covers

_NOT_COMPARED: Final = ("timeout", "callback", "robust", "self")


class _Request(NamedTuple):
    name: str
    effect: Effect
    own: tuple[str, ...] = ()
    """Attributes of the object that are part of the request."""


_EXCHANGE: Final = ("name", "_type", "durable", "auto_delete", "internal", "passive", "arguments")
_QUEUE: Final = ("name", "durable", "exclusive", "auto_delete", "passive", "arguments")
_REQUESTS: Final[Mapping[tuple[str, str], Mapping[str, _Request]]] = {
    ("exchange", "Exchange"): {
        "declare": _Request("declare_exchange", Effect.WRITE, _EXCHANGE),
        "bind": _Request("bind_exchange", Effect.WRITE, ("name",)),
        "unbind": _Request("unbind_exchange", Effect.WRITE, ("name",)),
        "publish": _Request("publish", Effect.WRITE, ("name",)),
        "delete": _Request("delete_exchange", Effect.IRREVERSIBLE, ("name",)),
    },
    ("queue", "Queue"): {
        "declare": _Request("declare_queue", Effect.WRITE, _QUEUE),
        "bind": _Request("bind_queue", Effect.WRITE, ("name",)),
        "unbind": _Request("unbind_queue", Effect.WRITE, ("name",)),
        "get": _Request("get", Effect.WRITE, ("name",)),
        "purge": _Request("purge_queue", Effect.IRREVERSIBLE, ("name",)),
        "delete": _Request("delete_queue", Effect.IRREVERSIBLE, ("name",)),
    },
    ("channel", "Channel"): {
        "set_qos": _Request("set_qos", Effect.READ),
        "queue_delete": _Request("delete_queue", Effect.IRREVERSIBLE),
        "exchange_delete": _Request("delete_exchange", Effect.IRREVERSIBLE),
        "flow": _Request("flow", Effect.READ),
    },
    ("message", "IncomingMessage"): {
        "ack": _Request("ack", Effect.WRITE, ("delivery_tag",)),
        "nack": _Request("nack", Effect.WRITE, ("delivery_tag",)),
        "reject": _Request("reject", Effect.WRITE, ("delivery_tag",)),
    },
    ("transaction", "Transaction"): {
        "select": _Request("begin", Effect.WRITE),
        "commit": _Request("commit", Effect.WRITE),
        "rollback": _Request("rollback", Effect.WRITE),
    },
}
"""Module and class of aio-pika → methods that ask the broker, also of the robust class of the same name."""


# ── Requests ────────────────────────────────────────────────────────────────────────────────────────
def _arguments(method: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    return {name: show(value) for name, value in bind(method, args, kwargs).items() if name not in _NOT_COMPARED}


def _describe(request: _Request, owner: Any, method: Any, args: Any, kwargs: Any) -> FunctionCall:
    own = {name.lstrip("_"): show(getattr(owner, name, None)) for name in request.own}
    arguments = {**own, **_arguments(method, args, kwargs)} or {"operation": request.name}
    return FunctionCall(Kind.TOOL.value, f"amqp.{request.name}", request.effect.value, arguments, prints=False)


def _underlay(owner: Any) -> Any:
    """Return aiormq's channel of one of aio-pika's objects; None if it has none."""
    found = getattr(owner, "_IncomingMessage__channel", None)
    if found is not None:
        return found
    channel = owner if hasattr(owner, "_channel") else getattr(owner, "channel", None)
    return getattr(getattr(channel, "_channel", None), "channel", None)


def _asking(request: _Request) -> Callable[[Any, Any, Any, Any], Any]:
    async def asking(wrapped: Any, owner: Any, args: Any, kwargs: Any) -> Any:
        if not asks_now():
            return await wrapped(*args, **kwargs)
        channel = _underlay(owner)
        return await ask(
            lambda: _describe(request, owner, wrapped, args, kwargs),
            lambda: wrapped(*args, **kwargs),
            failed=lambda exc: _close_as_server(channel, exc),
            channel=channel,
        )

    return asking


def _close_as_server(channel: Any, exc: BaseException) -> None:
    """Close a stand-in's channel where a recorded error says that the server has closed it."""
    codes = [code for code, cls in _closing_errors().items() if type(exc) is cls]
    if channel is None or channel.is_closed or not codes:
        return
    code = exc.args[0] if len(exc.args) > 1 else codes[0]
    close = make_frame("Channel.Close", {"reply_code": code, "reply_text": str(exc.args[-1]), "class_id": 0})
    channel.connection.channels.pop(channel.number, None)
    channel.frames.put_nowait((0, close))


def _closing_errors() -> dict[Any, Any]:
    from aiormq import channel, exceptions

    return {**channel.EXCEPTION_MAPPING, 0: exceptions.ChannelClosed}


async def _publish(wrapped: Any, exchange: Any, args: Any, kwargs: Any) -> Any:
    """Publish a message; one that the broker gives back is told to the program's functions here."""
    result = await _publish_call(wrapped, exchange, args, kwargs)
    if is_message(result) and asks_now():
        for callback in list(result.channel.on_return_callbacks):
            callback(result)
    return result


_publish_call: Final = _asking(_REQUESTS["exchange", "Exchange"]["publish"])


# ── Consumers ───────────────────────────────────────────────────────────────────────────────────────
async def _consume(wrapped: Any, queue: Any, args: Any, kwargs: Any) -> Any:
    if not asks_now():
        return await wrapped(*args, **kwargs)
    bound = inspect.signature(wrapped).bind(*args, **kwargs)
    feed = Consumer(queue, bound.arguments["callback"], no_ack=bool(bound.arguments.get("no_ack")))
    bound.arguments["callback"] = feed.hand
    request = _Request("consume", Effect.WRITE, ("name",))
    tag = await ask(
        lambda: _describe(request, queue, wrapped, args, kwargs),
        lambda: wrapped(*bound.args, **bound.kwargs),
        failed=lambda exc: _close_as_server(_underlay(queue), exc),
        channel=_underlay(queue),
    )
    feeds.add(queue.channel, tag, feed).start()
    return tag


async def _cancel(wrapped: Any, queue: Any, args: Any, kwargs: Any) -> Any:
    result = await _cancel_call(wrapped, queue, args, kwargs)
    if asks_now():
        await feeds.end(queue.channel, args[0] if args else kwargs["consumer_tag"])
    return result


_cancel_call: Final = _asking(_Request("cancel", Effect.WRITE, ("name",)))


# ── Connections and channels ────────────────────────────────────────────────────────────────────────
def _learn(connection: Any) -> dict[str, Any]:
    """Return what a connection knows of its server."""
    found = connection.transport.connection
    tune = found.connection_tune
    return {
        "properties": dict(found.server_properties),
        "tune": {"channel_max": tune.channel_max, "frame_max": tune.frame_max},
    }


def _describe_connect(connection: Any) -> FunctionCall:
    url = connection.url
    made = FunctionCall(Kind.TOOL.value, "amqp.connect", Effect.READ.value, {"vhost": url.path or "/"})
    return made._replace(beside={"server": {"host": str(url.host), "port": str(url.port)}})


async def _connect(wrapped: Any, connection: Any, args: Any, kwargs: Any) -> Any:
    if getattr(connection, "connection_attempt", 0):
        with plumbing():  # a robust connection connects again by itself
            return await wrapped(*args, **kwargs)
    if not asks_now():
        return await wrapped(*args, **kwargs)
    return await ask(
        lambda: _describe_connect(connection), lambda: wrapped(*args, **kwargs), lambda: _learn(connection)
    )


async def _update_secret(wrapped: Any, connection: Any, args: Any, kwargs: Any) -> Any:
    if not asks_now():
        return await wrapped(*args, **kwargs)
    described = FunctionCall(Kind.TOOL.value, "amqp.update_secret", Effect.WRITE.value, {"operation": "update_secret"})
    return await ask(lambda: described, lambda: wrapped(*args, **kwargs), dict)


async def _open_channel(wrapped: Any, channel: Any, args: Any, kwargs: Any) -> Any:
    if not asks_now():
        return await wrapped(*args, **kwargs)
    shown = {"confirms": channel.publisher_confirms, "number": channel._channel_number}
    described = FunctionCall(Kind.TOOL.value, "amqp.open_channel", Effect.READ.value, shown)
    return await ask(lambda: described, lambda: wrapped(*args, **kwargs), dict)


async def _close(wrapped: Any, owner: Any, args: Any, kwargs: Any) -> Any:
    if not asks_now():
        return await wrapped(*args, **kwargs)
    with plumbing():
        result = await wrapped(*args, **kwargs)
    for channel in channels_of(owner) or [owner]:
        await feeds.end_all(channel)
    await end_notices(owner)
    return result


async def _restore(wrapped: Any, channel: Any, args: Any, kwargs: Any) -> Any:
    with plumbing():
        return await wrapped(*args, **kwargs)


def _add(wrapped: Any, collection: Any, args: Any, kwargs: Any) -> Any:
    """Let one of the program's functions hear of a connection or channel outside of the client's own tasks."""
    if len(args) != 1 or kwargs.get("weak") or not asks_now():
        return wrapped(*args, **kwargs)
    sender = getattr(collection, "_CallbackCollection__sender", lambda: None)()
    return wrapped(hear_of(sender, args[0]), **kwargs)


def _return(wrapped: Any, channel: Any, args: Any, kwargs: Any) -> Any:
    """Leave a message that the broker gives back to whoever waits for its confirmation."""
    message = args[0]
    waiting = getattr(message.channel, _WAITING, ())
    if any(getattr(each, "message_id", None) == message.header.properties.message_id for each in waiting):
        return None
    return wrapped(*args, **kwargs)


_WAITING: Final = "_spanreplay_waiting"
"""Attribute of aiormq's channel: the properties of messages whose confirmation a recorded call waits for."""


# ── Below aio-pika ──────────────────────────────────────────────────────────────────────────────────
async def _hear(wrapped: Any, channel: Any, args: Any, kwargs: Any) -> Any:
    return await hear(channel, lambda: wrapped(*args, **kwargs))


async def _hear_publish(wrapped: Any, channel: Any, args: Any, kwargs: Any) -> Any:
    waiting = vars(channel).setdefault(_WAITING, [])
    waiting.append(kwargs.get("properties"))
    try:
        return await hear(channel, lambda: wrapped(*args, **kwargs))
    finally:
        waiting.remove(kwargs.get("properties"))


async def _connect_below(wrapped: Any, connection: Any, args: Any, kwargs: Any) -> Any:
    told = told_of_server()
    if told is None:  # also of aiormq that is used directly, whose connections are recorded by themselves
        return await wrapped(*args, **kwargs)
    connection._transport_factory = stand_in = StandInTransport(told)
    connection.heartbeat_timeout = 0
    with plumbing(), holding(_opened, stand_in):
        return await wrapped(*args, **kwargs)


_opened: Final[ContextVar[StandInTransport | None]] = ContextVar("spanreplay_amqp_opened", default=None)


class _Asyncio:
    """What aiormq before 6.8 takes for `asyncio`: it opens connections there, without a factory of transports."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def open_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Open a connection; in a replay, the two ends of a stream to nobody."""
        opened = _opened.get()
        return await (asyncio.open_connection(*args, **kwargs) if opened is None else opened.create(None))


_BELOW: Final = ("rpc", "basic_get", "basic_ack", "basic_nack", "basic_reject")


def _install_below(module: Any, patches: Patches) -> None:
    if module.__name__ == "aiormq.connection":
        if not hasattr(module, "TCPTransportFactory"):
            patches.replace(module, "asyncio", _Asyncio())
        patches.wrap(module.Connection, "connect", _connect_below)
        return
    require(module, "EXCEPTION_MAPPING")
    for name in _BELOW:
        patches.wrap(module.Channel, name, _hear)
    patches.wrap(module.Channel, "basic_publish", _hear_publish)


_OTHERS: Final[Mapping[str, Mapping[tuple[str, str], Callable[[Any, Any, Any, Any], Any]]]] = {
    "exchange": {("Exchange", "publish"): _publish},
    "queue": {
        ("Queue", "consume"): _consume,
        ("Queue", "cancel"): _cancel,
        ("QueueIterator", "__anext__"): take_next,
        ("QueueIterator", "close"): close_iterator,
    },
    "channel": {
        ("Channel", "initialize"): _open_channel,
        ("Channel", "close"): _close,
        ("Channel", "restore"): _restore,
        ("Channel", "_restore_consumers"): _restore,
        ("Channel", "_on_return"): _return,
    },
    "connection": {
        ("Connection", "connect"): _connect,
        ("Connection", "close"): _close,
        ("Connection", "update_secret"): _update_secret,
    },
    "tools": {("CallbackCollection", "add"): _add},
}


@covers("aio-pika")
def install(module: Any, patches: Patches) -> None:
    """Patch one of aio-pika's or aiormq's modules. Raises: AttributeError if it is not as expected."""
    package, _, name = module.__name__.partition(".")
    if package == "aiormq":
        _install_below(module, patches)
        return
    kind = name.removeprefix("robust_")
    if name == "channel":
        require(module.Channel, "get_underlay_channel")
    table: dict[tuple[str, str], Any] = {
        (cls, method): _asking(request)
        for (place, cls), requests in _REQUESTS.items()
        if place == kind
        for method, request in requests.items()
    }
    table.update(_OTHERS.get(kind, {}))
    for (owner, method), wrapper in table.items():
        cls = getattr(module, f"Robust{owner}" if kind != name else owner, None)
        if cls is None:
            raise AttributeError(f"{module.__name__} has no {owner}", name=owner, obj=module)
        if method in vars(cls):
            patches.wrap(cls, method, wrapper)
