"""Seam: aiokafka: messages that are sent and taken, on an event loop.

Connecting, joining groups and fetching ahead are the client's own work. In a replay no connection is made.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.calls.function_calls import call_async
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.calls.taking import Taking, find_taker, leave
from spanreplay.runtime.patches import Patches, require
from spanreplay.seams.machine.brokers.kafka.askers import asking_run
from spanreplay.seams.machine.brokers.kafka.calls import CLIENTS
from spanreplay.seams.machine.brokers.kafka.listeners import listen_async
from spanreplay.seams.machine.brokers.kafka.python_clients import bind, later, note, patch_methods, run_of, subscribing
from spanreplay.seams.machine.brokers.kafka.serializing import Serialized, describe_message, unwrap_partitioned
from spanreplay.seams.machine.databases.postgres import is_replayed_here

_PARAMETERS: Final = ("topic", "value", "key", "partition", "timestamp_ms", "headers")
_MAGIC: Final = "_producer_magic"
"""Attribute of producers before 0.12: the version of message sets, which `start` asks for."""
_MAGIC_NOW: Final = 2
_ERRORS: Final = "aiokafka.errors"
_BATCH: Final = "_spanreplay_batch"


def _make(wrapped: Any, client: Any, args: Any, kwargs: Any) -> None:
    note(client, {**kwargs, **({"topics": list(args)} if args else {})})
    if asking_run(CLIENTS) is None:
        wrapped(*args, **kwargs)
        return
    with plumbing():
        wrapped(*args, **kwargs)


def _serialize(wrapped: Any, producer: Any, args: Any, kwargs: Any) -> Any:
    """Serialize a key and a value, unless that has been done."""
    if not any(isinstance(each, Serialized) for each in args):
        return wrapped(*args, **kwargs)
    given = dict(zip(inspect.signature(wrapped).parameters, args, strict=False))
    return Serialized.raw_of(given.get("key")), Serialized.raw_of(given.get("value"))


def _prepare(producer: Any, args: Any, kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `send` with serialized parts, and what is compared of them."""
    given: dict[str, Any] = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
    key, value = given.get("key"), given.get("value")
    parts = {**given, "headers": given.get("headers") or []}
    # each version names other parts, in another order
    raw_key, raw_value = producer._serialize(*map(parts.get, inspect.signature(producer._serialize).parameters))
    shown = describe_message({**given, "key": raw_key, "value": raw_value})
    return {**given, "key": Serialized.of(key, raw_key), "value": Serialized.of(value, raw_value)}, shown


async def _send(wrapped: Any, producer: Any, args: Any, kwargs: Any) -> Any:
    run, state = run_of(producer)
    if run is None or state is None:
        return await wrapped(*args, **kwargs)
    given, shown = _prepare(producer, args, kwargs)
    made: list[Any] = []

    async def live() -> None:
        with plumbing():
            made.append(await wrapped(**given))

    await call_async(lambda: state.describe("produce", shown, Effect.IRREVERSIBLE), live)
    return _deliver_later(state, made[0] if made else None)


def _deliver_later(state: Any, real: Any) -> Any:
    """Return a task that ends with what the broker says of a message."""
    return later(_delivery(state, real))


async def _delivery(state: Any, real: Any) -> Any:
    async def live() -> Any:
        return await real

    return await call_async(lambda: state.describe("delivery", {}, Effect.READ), live)


async def _send_and_wait(wrapped: Any, producer: Any, args: Any, kwargs: Any) -> Any:
    run, state = run_of(producer)
    if run is None or state is None:
        return await wrapped(*args, **kwargs)
    given, shown = _prepare(producer, args, kwargs)

    async def live() -> Any:
        with plumbing():
            return await wrapped(**given)

    return await call_async(lambda: state.describe("produce", shown, Effect.IRREVERSIBLE), live)


# ── Batches that the program fills ──────────────────────────────────────────────────────────────────
def _append(wrapped: Any, batch: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    if result is not None:
        vars(batch).setdefault(_BATCH, []).append(describe_message(bind(wrapped, batch, args, kwargs)))
    return result


async def _send_batch(wrapped: Any, producer: Any, args: Any, kwargs: Any) -> Any:
    run, state = run_of(producer)
    if run is None or state is None:
        return await wrapped(*args, **kwargs)
    batch = args[0] if args else kwargs.get("batch")
    arguments = bind(wrapped, producer, args, kwargs)
    shown = {**arguments, "batch": list(getattr(batch, "__dict__", {}).get(_BATCH, ()))}
    made: list[Any] = []

    async def live() -> None:
        with plumbing():
            made.append(await wrapped(*args, **kwargs))

    await call_async(lambda: state.describe("produce_batch", shown, Effect.IRREVERSIBLE), live)
    return _deliver_later(state, made[0] if made else None)


# ── Starting, stopping, listening ───────────────────────────────────────────────────────────────────
async def _start(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    run, state = run_of(client)
    if run is None or state is None:
        return await wrapped(*args, **kwargs)

    async def live() -> None:
        with plumbing():
            await wrapped(*args, **kwargs)

    state.is_served = is_replayed_here()
    if state.is_served and hasattr(client, "send"):
        vars(client).setdefault(_MAGIC, _MAGIC_NOW)
    return await call_async(lambda: state.describe("connect", {}, Effect.READ), live)


async def _stop(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    leave(client)
    run, state = run_of(client)
    if run is None or state is None:
        return None if state is not None and state.is_served else await wrapped(*args, **kwargs)

    async def live() -> None:
        with plumbing():
            await wrapped(*args, **kwargs)

    try:
        return await call_async(lambda: state.describe("close", {}, Effect.READ), live)
    finally:
        client._closed = True


# ── Taking messages ─────────────────────────────────────────────────────────────────────────────────
def _taking(name: str, nothing: Callable[[], Any] | None) -> Callable[[Any, Any, Any, Any], Any]:
    async def take(wrapped: Any, consumer: Any, args: Any, kwargs: Any) -> Any:
        run, state = run_of(consumer)
        if run is None or state is None:
            return await wrapped(*args, **kwargs)

        async def live() -> Any:
            with plumbing():
                return await wrapped(*args, **kwargs)

        described = partial(state.describe, name, bind(wrapped, consumer, args, kwargs), Effect.READ)
        source = state.settings.source(consumer)
        taker = find_taker(source)
        if taker is None:
            return await call_async(described, live)
        return await taker.take_async(
            Taking(source, described, is_nothing=_is_nothing, nothing=nothing, headers=_headers_of), live
        )

    return take


def _is_nothing(found: Any) -> bool:
    return bool(found == {})


def _headers_of(found: Any) -> dict[str, Any]:
    """Return the headers of the first message."""
    first = next(iter(found.values()))[0] if isinstance(found, dict) else found
    return dict(first.headers or ())


# ── Below producers and consumers ───────────────────────────────────────────────────────────────────
def _refuse(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    """Ask the broker by a way that no call covers: the program has taken the client below a producer or consumer."""
    run = asking_run(CLIENTS)
    if run is not None:
        run.resolver.leave_out(f"{wrapped.__name__} of the client below aiokafka was used: it is not recorded")
    return wrapped(*args, **kwargs)


async def _wait_for_metadata(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    """Wait until a topic is known; in a replay none ever is. Instrumentors ask for it, to name a partition."""
    if asking_run(CLIENTS) is None:
        return await wrapped(*args, **kwargs)
    if is_replayed_here():
        raise sys.modules[_ERRORS].KafkaConnectionError("this client is replayed: no broker is asked")
    with plumbing():
        return await wrapped(*args, **kwargs)


_BELOW: Final[Mapping[str, Any]] = {
    "_wait_on_metadata": _wait_for_metadata,
    **dict.fromkeys(("send", "ready", "fetch_all_metadata", "force_metadata_update", "coordinator_lookup"), _refuse),
}
_CLASSES: Final[Mapping[str, tuple[Mapping[str, Any], str]]] = {
    "AIOKafkaProducer": (
        {
            "__init__": _make,
            "start": _start,
            "stop": _stop,
            "send": _send,
            "send_and_wait": _send_and_wait,
            "send_batch": _send_batch,
            "_serialize": _serialize,
            "_partition": unwrap_partitioned,
        },
        "create_batch transaction",
    ),
    "AIOKafkaConsumer": (
        {
            "__init__": _make,
            "start": _start,
            "stop": _stop,
            "subscribe": subscribing(listen_async),
            "getone": _taking("getone", None),
            "getmany": _taking("getmany", dict),
        },
        "",
    ),
    "AIOKafkaAdminClient": ({"__init__": _make, "start": _start, "close": _stop}, ""),
}
"""Class → what replaces its methods, and its methods that stay as they are."""
_NEEDED: Final = {
    "AIOKafkaProducer": ("start", "stop", "send", "send_and_wait", "_serialize", "_partition"),
    "AIOKafkaConsumer": ("start", "stop", "getone", "getmany", "subscribe"),
    "AIOKafkaAdminClient": ("start", "close"),
}


def install(module: Any, patches: Patches) -> None:
    """Patch one of the client's modules. Raises: AttributeError if it is not as expected."""
    for name, (special, inside) in _CLASSES.items():
        cls = getattr(module, name, None)
        if cls is not None and cls.__module__ == module.__name__:
            require(cls, *_NEEDED[name])
            patch_methods(cls, patches, special, inside=inside)
    below = getattr(module, "AIOKafkaClient", None)
    if below is not None and below.__module__ == module.__name__:
        for name in set(_BELOW) & set(vars(below)):
            patches.wrap(below, name, _BELOW[name])
    builder = getattr(module, "BatchBuilder", None)
    if builder is not None and builder.__module__ == module.__name__:
        patches.wrap(builder, "append", _append)
