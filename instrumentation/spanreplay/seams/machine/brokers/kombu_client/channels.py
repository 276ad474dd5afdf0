"""Channels of kombu, of any transport, whose methods are calls; in a replay they belong to no connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from importlib import import_module
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.calls.taking import Source, find_taker
from spanreplay.runtime.context_variables import holding
from spanreplay.seams.machine.asked import asking_run
from spanreplay.seams.machine.brokers.amqp_methods import METHODS, Request
from spanreplay.seams.machine.brokers.bound import bind
from spanreplay.seams.machine.brokers.carried_out import carrying_out
from spanreplay.seams.machine.brokers.covered import is_covered
from spanreplay.seams.machine.brokers.kombu_client.values import (
    make_message,
    pack_message,
    pack_result,
    show,
    unpack_result,
)
from spanreplay.seams.machine.databases.postgres import is_replayed_here

__all__ = [
    "CLIENTS",
    "Deliveries",
    "NoConnection",
    "ask",
    "asks_now",
    "deliveries_of",
    "describe",
    "is_inside",
    "make_source",
    "record_channel",
    "serve_channel",
]

CLIENTS: Final = frozenset({"kombu", "amqp", "vine"})
_STATE: Final = "_spanreplay_state"
_RESULT, _DELIVERED, _CONNECTED = "result", "delivered", "connected"
_LEFT: Final = "_spanreplay_connected"
"""Attribute of an error while it is recorded or served: whether it has left the client connected."""
_NOT_COMPARED: Final = (
    "callback",
    "on_cancel",
    "nowait",
    "timeout",
    "consumer_tag",
    "confirm_timeout",
    "argsig",
)
is_inside: Final[ContextVar[bool]] = ContextVar("spanreplay_kombu_inside", default=False)
"""Whether what happens here is part of a request."""
_CONSUME: Final = Request("consume", Effect.WRITE)


class Deliveries:
    """Consumers of one connection, and messages that came for them during the running call."""

    def __init__(self) -> None:
        self.consumers: dict[str, tuple[Callable[[Any], Any], Any]] = {}
        """Queue → who gets its messages, and the channel."""
        self.came: list[tuple[str, Any]] = []
        self.waiting: list[tuple[str, Any]] = []
        """Messages that are runs of their own, and came while one is worked on: they follow it."""
        self.is_at_work = False
        """Whether a consumer works on such a message."""
        self.hand_on: Callable[[], None] | None = None
        """Hands on those that wait; None while the program has not waited for messages that are runs of their own."""


def deliveries_of(client: Any) -> Deliveries:
    """Return the consumers of a connection."""
    found: Deliveries = vars(client).setdefault(_STATE, Deliveries())
    return found


def make_source(client: Any, queue: str) -> Source:
    """Return what a consumer of a queue takes messages from."""
    return Source(f"kombu {queue}", id(client))


def asks_now() -> bool:
    """Whether a request that begins here is a call, not part of another one."""
    return not is_inside.get() and is_covered("kombu") and asking_run(CLIENTS) is not None


def describe(name: str, effect: Effect, arguments: Mapping[str, Any]) -> FunctionCall:
    """Describe a request."""
    return FunctionCall(Kind.TOOL.value, f"kombu.{name}", effect.value, dict(arguments) or {"operation": name})


# ── A call, and the messages that come meanwhile ────────────────────────────────────────────────────
def ask(client: Any, description: Callable[[], FunctionCall], method: Callable[[], Any], channel: Any = None) -> Any:
    """Make a request a call; messages that came meanwhile are handed to their consumers after it."""
    made: list[Any] = []
    deliveries = deliveries_of(client)
    came: list[tuple[str, Any]] = []
    own: list[tuple[str, Any]] = []

    def live() -> dict[str, Any]:
        before, deliveries.came = deliveries.came, came
        try:
            with holding(is_inside, True):
                made.append(method())
        except Exception as exc:
            vars(exc)[_LEFT] = _is_connected(client)
            raise
        finally:
            deliveries.came = before
        told: dict[str, Any] = {_RESULT: None}
        if channel is not None:
            told[_RESULT] = guard.guarded("a result of kombu", pack_result, channel, made[0])
        if _is_connected(client):
            told[_CONNECTED] = True
        if deliveries.hand_on is not None:
            own[:] = [each for each in came if find_taker(make_source(client, each[0])) is not None]
            came[:] = [each for each in came if each not in own]
        if came:
            packed = guard.guarded("messages of kombu", lambda: [[q, _pack_raw(deliveries, q, raw)] for q, raw in came])
            told[_DELIVERED] = packed or []
        return told

    try:
        told = call_sync(description, live)
    except Exception as exc:
        if vars(exc).pop(_LEFT, False):
            _count_as_connected(client)
        _hand_over(deliveries, came)
        raise
    if made:
        _hand_over(deliveries, came)
        deliveries.waiting += own
        if own and deliveries.hand_on is not None and not deliveries.is_at_work:
            deliveries.hand_on()
        return made[0]
    if told.get(_CONNECTED):
        _count_as_connected(client)
    found = [(queue, make_message(value, _channel_of(deliveries, queue))) for queue, value in told.get(_DELIVERED, ())]
    _hand_over(deliveries, found)
    return unpack_result(told[_RESULT], channel)


def _is_connected(client: Any) -> bool:
    return getattr(client, "_connection", None) is not None


def _count_as_connected(client: Any) -> None:
    """In a replay, let a client have the connection that it had after the recorded call."""
    if not _is_connected(client) and is_replayed_here():
        client._connection, client._closed = NoConnection(client), False


def _channel_of(deliveries: Deliveries, queue: str) -> Any:
    return deliveries.consumers[queue][1] if queue in deliveries.consumers else None


def _pack_raw(deliveries: Deliveries, queue: str, raw: Any) -> dict[str, Any]:
    return pack_message(_channel_of(deliveries, queue).message_to_python(raw))


def _hand_over(deliveries: Deliveries, came: list[tuple[str, Any]]) -> None:
    for queue, message in came:
        if queue in deliveries.consumers:
            deliveries.consumers[queue][0](message)


# ── Channels ────────────────────────────────────────────────────────────────────────────────────────
def _arguments(method: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    found = bind(method, args, kwargs, defaults=False)
    found.update(found.pop("kwargs", {}))
    return {name: show(value) for name, value in found.items() if name not in _NOT_COMPARED}


def _asking(client: Any, channel: Any, request: Request, real: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(real)
    def asking(*args: Any, **kwargs: Any) -> Any:
        if not asks_now():
            return real(*args, **kwargs)
        return ask(
            client,
            lambda: describe(request.name, request.effect, _arguments(real, args, kwargs)),
            lambda: real(*args, **kwargs),
            channel,
        )

    return asking


def _consuming(client: Any, channel: Any, real: Callable[..., Any]) -> Callable[..., Any]:
    consume = _asking(client, channel, _CONSUME, real)
    deliveries = deliveries_of(client)

    @wraps(real)
    def consuming(queue: str = "", *args: Any, **kwargs: Any) -> Any:
        callback = kwargs.get("callback")
        if not asks_now() or callback is None or args:
            return consume(queue, *args, **kwargs)

        def hand(raw: Any) -> Any:
            if not is_inside.get():
                return callback(raw)
            deliveries.came.append((queue, raw))
            return None

        deliveries.consumers[queue] = (callback, channel)
        return consume(queue, **{**kwargs, "callback": hand})

    return consuming


def _closing(real: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(real)
    def close(*args: Any, **kwargs: Any) -> Any:
        with carrying_out("tool:kombu.close"), holding(is_inside, True):
            return real(*args, **kwargs)

    return close


def record_channel(client: Any, channel: Any) -> Any:
    """Let the methods of a channel be calls."""
    for name, request in METHODS.items():
        real = getattr(channel, name, None)
        if real is not None:
            setattr(channel, name, _asking(client, channel, request, real))
    channel.basic_consume = _consuming(client, channel, channel.basic_consume)
    channel.close = _closing(channel.close)
    return channel


def _refusing(real: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(real)
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError("this connection is replayed")

    return refuse


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


def serve_channel(client: Any, connection: Any) -> Any:
    """Return a channel of the transport's own class that belongs to no connection."""
    transport = client.transport
    cls = getattr(transport, "Channel", None) or getattr(getattr(transport, "Connection", None), "Channel", None)
    if cls is None:
        cls = import_module("kombu.transport.base").StdChannel
    channel = cls.__new__(cls)
    own: dict[str, Any] = {
        "connection": connection, "channel_id": 1, "is_open": True, "closed": False, "events": _Events(),
        "no_ack_consumers": set(), "callbacks": {}, "cancel_callbacks": {}, "message_to_python": _same,
        "close": _nothing, "auto_decode": False,
    }  # fmt: skip
    for name, value in own.items():
        setattr(channel, name, value)
    for name, request in METHODS.items():
        real = getattr(channel, name, None)
        if real is not None:
            setattr(channel, name, _asking(client, channel, request, _refusing(real)))
    channel.basic_consume = _consuming(client, channel, _refusing(channel.basic_consume))
    return channel


def _same(message: Any) -> Any:
    return message


class _Events(dict[str, set[Any]]):
    """Who hears of what happens on a channel."""

    def __missing__(self, name: str) -> set[Any]:
        return self.setdefault(name, set())


class NoConnection:
    """A transport's connection that was never made."""

    connected = True
    heartbeat = 0
    server_properties: Mapping[str, Any] = {"product": "RabbitMQ", "version": "3.10.0"}

    def __init__(self, client: Any) -> None:
        self.client = client
        self.channels: dict[int, Any] = {}

    def close(self) -> None:
        """Close nothing."""
        self.connected = False

    collect = close

    def heartbeat_tick(self, rate: int = 2) -> None:
        """Send nothing."""
