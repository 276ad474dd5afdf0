"""Seam: nats-py: each message published, requested, fetched or delivered is a call.

Connections, logins, pings and reconnections are live while recording. In a replay the client's own code runs without a
connection; subscriptions get the recorded messages.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import read
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.context_variables import holding
from spanreplay.runtime.patches import Patches, require
from spanreplay.runtime.reads import make_loose
from spanreplay.seams.machine.brokers.bound import bind
from spanreplay.seams.machine.brokers.carried_out import carrying_out
from spanreplay.seams.machine.brokers.covered import covers
from spanreplay.seams.machine.brokers.nats_client import taken
from spanreplay.seams.machine.brokers.nats_client.asking import (
    STAND_IN,
    ask,
    asks_now,
    describe,
    make_message,
    pack_message,
    run_own,
)
from spanreplay.seams.machine.brokers.nats_client.feeds import Subscription, feeds
from spanreplay.seams.machine.brokers.nats_client.notices import (
    Notices,
    close_notices,
    end_notices,
    start_notices,
)
from spanreplay.seams.machine.databases.postgres import is_replayed_here

_NOT_COMPARED: Final = ("timeout", "cb", "future", "pending_msgs_limit", "pending_bytes_limit", "heartbeat")
_CALLBACKS: Final = (
    "error_cb", "disconnected_cb", "closed_cb", "discovered_server_cb", "reconnected_cb", "lame_duck_mode_cb",
)  # fmt: skip
_is_own: Final[ContextVar[bool]] = ContextVar("spanreplay_nats_own", default=False)
"""Whether a subscription that is being made is the program's, whose messages are calls."""
_is_pulled: Final[ContextVar[bool]] = ContextVar("spanreplay_nats_pulled", default=False)
"""Whether it only holds what `fetch` takes from it."""
_told: Final[ContextVar[Mapping[str, Any] | None]] = ContextVar("spanreplay_nats_told", default=None)
_IDS: Final = make_loose("random", "nats.id", pack=lambda value: bytes(value).decode(), unpack=str.encode)


def _arguments(method: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    return {name: _show(value) for name, value in bind(method, args, kwargs).items() if name not in _NOT_COMPARED}


def _show(value: Any) -> Any:
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, Mapping):
        return {str(name): _show(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_show(each) for each in value]
    return value if isinstance(value, (str, bytes, int, float, type(None))) else f"({type(value).__name__})"


def _described(name: str, effect: Effect, method: Any, args: Any, kwargs: Any) -> Callable[[], FunctionCall]:
    return lambda: describe(name, effect, _arguments(method, args, kwargs))


# ── Requests ────────────────────────────────────────────────────────────────────────────────────────
async def _publish(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    if not asks_now():
        return await wrapped(*args, **kwargs)
    described = _described("publish", Effect.WRITE, wrapped, args, kwargs)
    return await ask(described, lambda: wrapped(*args, **kwargs), client=client)


async def _request(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    if not asks_now():
        return await wrapped(*args, **kwargs)
    described = _described("request", Effect.WRITE, wrapped, args, kwargs)
    return await ask(
        described, lambda: wrapped(*args, **kwargs), pack_message, partial(make_message, client), client=client
    )


async def _fetch(wrapped: Any, pulled: Any, args: Any, kwargs: Any) -> Any:
    if not asks_now():
        return await wrapped(*args, **kwargs)
    own = {"stream": pulled._stream, "consumer": pulled._consumer}

    def described() -> FunctionCall:
        return describe("fetch", Effect.READ, {**own, **_arguments(wrapped, args, kwargs)})

    found = await taken.fetch_taken(wrapped, pulled, args, kwargs, described)
    if found is not None:
        return found
    return await ask(
        described,
        lambda: wrapped(*args, **kwargs),
        lambda messages: [pack_message(each) for each in messages],
        lambda values: [make_message(pulled._nc, each) for each in values],
        client=pulled._nc,
    )


async def _flush(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    if asks_now():
        described = _described("flush", Effect.READ, wrapped, args, kwargs)
        await ask(described, lambda: _flush_all(wrapped, client, args, kwargs))
    else:
        await _flush_all(wrapped, client, args, kwargs)


async def _flush_all(wrapped: Any, client: Any, args: Any, kwargs: Any) -> None:
    if not vars(client).get(STAND_IN):
        await wrapped(*args, **kwargs)
        for feed in feeds.all_of(client):
            await feed.settle()


async def _rtt(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    if not asks_now():
        return await wrapped(*args, **kwargs)
    described = _described("rtt", Effect.READ, wrapped, args, kwargs)
    return await ask(described, lambda: wrapped(*args, **kwargs), lambda took: took, lambda took: took, client=client)


# ── Subscriptions ───────────────────────────────────────────────────────────────────────────────────
async def _subscribe(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    if not asks_now():
        return await wrapped(*args, **kwargs)
    described = _described("subscribe", Effect.READ, wrapped, args, kwargs)
    with holding(_is_own, not _is_pulled.get()):
        made = await ask(described, lambda: wrapped(*args, **kwargs), client=client)
    feed = feeds.find(client, made._id)
    if feed is not None:
        feed.start()
    return made


def _start(wrapped: Any, subscription: Any, args: Any, kwargs: Any) -> Any:
    """Let a subscription of the program get its messages by a feed, and process them outside of the call."""
    if not _is_own.get():
        return wrapped(*args, **kwargs)
    if taken.are_taken() and not subscription._future:
        if subscription._cb:
            taken.take_in_callback(subscription)
        with holding(_is_own, False):
            return run_own(lambda: wrapped(*args, **kwargs))
    client = subscription._conn
    number, process = subscription._id, client._process_msg.__wrapped__
    feeds.add(client, number, Subscription(number, subscription._subject, process))
    with holding(_is_own, False):
        return run_own(lambda: wrapped(*args, **kwargs))


async def _process(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    """Hand a message that was received to its subscription's feed."""
    given = [*args, *kwargs.values()]
    feed = feeds.find(client, given[0])
    if feed is None:
        return await wrapped(*args, **kwargs)
    return feed.put(tuple(given[1:]))


async def _pull(wrapped: Any, context: Any, args: Any, kwargs: Any) -> Any:
    with holding(_is_pulled, True):
        return await wrapped(*args, **kwargs)


async def _unsubscribe(wrapped: Any, subscription: Any, args: Any, kwargs: Any) -> Any:
    taken.end(subscription)
    if not asks_now():
        return await wrapped(*args, **kwargs)
    own = {"subject": subscription._subject}
    result = await ask(
        lambda: describe("unsubscribe", Effect.READ, {**own, **_arguments(wrapped, args, kwargs)}),
        lambda: wrapped(*args, **kwargs),
    )
    if subscription._closed:
        await feeds.end(subscription._conn, subscription._id)
    return result


async def _drain_subscription(wrapped: Any, subscription: Any, args: Any, kwargs: Any) -> Any:
    taken.end(subscription)
    if not asks_now():
        return await wrapped(*args, **kwargs)
    described = describe("drain", Effect.READ, {"subject": subscription._subject})
    result = await ask(lambda: described, lambda: wrapped(*args, **kwargs))
    await feeds.end(subscription._conn, subscription._id)
    return result


# ── Connections ─────────────────────────────────────────────────────────────────────────────────────
def _server_of(client: Any) -> dict[str, str]:
    pool = client._server_pool
    uri = pool[0].uri if pool else None
    return {} if uri is None else {"host": str(uri.hostname), "port": str(uri.port)}


async def _connect(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    if not asks_now():
        return await wrapped(*args, **kwargs)
    own = {name: kwargs[name] for name in _CALLBACKS if inspect.iscoroutinefunction(kwargs.get(name))}
    notices = Notices(own)
    kwargs = {**kwargs, **{name: notices.wrap(name) for name in own}}
    described = describe("connect", Effect.READ, {})
    told: dict[str, Any] = {}

    async def method() -> Any:
        with holding(_told, told):
            return await wrapped(*args, **kwargs)

    made: list[Any] = []

    async def connect() -> Any:
        made.append(await method())
        return dict(client._server_info)

    value = await ask(lambda: described, connect, lambda found: found, lambda found: found)
    if not made:
        told.update(value)
        with carrying_out("tool:nats.connect"):
            made.append(await method())
    if own:
        start_notices(client, notices)
    return made[0]


async def _select(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    if _told.get() is None or not is_replayed_here():
        return await wrapped(*args, **kwargs)
    vars(client)[STAND_IN] = True
    client._current_server = client._server_pool[0]
    client._transport = _Nowhere()
    return None


async def _init(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    """Count as connected to the recorded server."""
    if not vars(client).get(STAND_IN):
        return await wrapped(*args, **kwargs)
    found = dict(_told.get() or {})
    client._server_info = found
    client._max_payload = found.get("max_payload", client._max_payload)
    client._client_id, client._client_ip = found.get("client_id"), found.get("client_ip")
    if "version" in found:
        client._current_server.server_version = found["version"]
    client._status = type(client).CONNECTED
    client._pongs = []
    return None


async def _send(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    return None if vars(client).get(STAND_IN) else await wrapped(*args, **kwargs)


async def _close(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    if not asks_now():
        return await wrapped(*args, **kwargs)
    close_notices(client)
    with carrying_out("tool:nats.close"):
        result = await wrapped(*args, **kwargs)
    await feeds.end_all(client)
    await end_notices(client)
    return result


async def _drain(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    if not asks_now():
        return await wrapped(*args, **kwargs)
    close_notices(client)
    result = await ask(lambda: describe("drain", Effect.READ, {}), lambda: wrapped(*args, **kwargs))
    await feeds.end_all(client)
    await end_notices(client)
    return result


class _Nowhere:
    """The transport of a client that is connected to nobody."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _nothing_async if name in ("drain", "wait_closed") else _nothing

    def __bool__(self) -> bool:
        return True


def _nothing(*args: Any) -> None:
    """Do nothing."""


async def _nothing_async(*args: Any) -> None:
    """Do nothing."""


# ── Ids ─────────────────────────────────────────────────────────────────────────────────────────────
def _draw(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Draw an id for the program; those for requests are drawn inside calls, and not in a replay."""
    drawn = wrapped(*args, **kwargs)
    if not asks_now():
        return drawn
    given = read(_IDS, lambda: bytes(drawn) if isinstance(drawn, bytearray) else drawn.encode())
    return bytearray(given) if isinstance(drawn, bytearray) else given.decode()


_CLIENT: Final[Mapping[str, Callable[[Any, Any, Any, Any], Any]]] = {
    "connect": _connect,
    "publish": _publish,
    "request": _request,
    "subscribe": _subscribe,
    "flush": _flush,
    "rtt": _rtt,
    "close": _close,
    "drain": _drain,
    "_process_msg": _process,
    "_select_next_server": _select,
    "_process_connect_init": _init,
    "_send_command": _send,
    "_flush_pending": _send,
}


@covers("nats-py")
def install(module: Any, patches: Patches) -> None:
    """Patch one of the client's modules. Raises: AttributeError if it is not as expected."""
    if module.__name__ == "nats.nuid":
        patches.wrap(module.NUID, "next", _draw)
    elif module.__name__ == "nats.aio.subscription":
        patches.wrap(module.Subscription, "_start", _start)
        patches.wrap(module.Subscription, "unsubscribe", _unsubscribe)
        patches.wrap(module.Subscription, "drain", _drain_subscription)
        patches.wrap(module.Subscription, "next_msg", taken.take_next)
        patches.wrap(module._SubscriptionMessageIterator, "__anext__", taken.take_next)
    elif module.__name__ == "nats.js.client":
        patches.wrap(module.JetStreamContext.PullSubscription, "fetch", _fetch)
        for name in ("pull_subscribe", "pull_subscribe_bind"):
            if hasattr(module.JetStreamContext, name):
                patches.wrap(module.JetStreamContext, name, _pull)
        if hasattr(module, "token_hex"):
            patches.wrap(module, "token_hex", _draw)
    else:
        require(module.Client, "_build_message")
        for name, wrapper in _CLIENT.items():
            if name == "rtt" and not hasattr(module.Client, name):
                continue
            patches.wrap(module.Client, name, wrapper)
