"""Seam: kafka-python: messages that are sent and taken, above the client's own threads.

In a replay a client is never connected: its constructor only keeps its settings.
"""

from __future__ import annotations

import copy
import inspect
import operator
import sys
from collections.abc import Mapping
from functools import partial
from types import FrameType
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.model.own_threads import unnumbered_threads
from spanreplay.runtime.calls.function_calls import call_sync
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.calls.taking import Taking, find_taker, leave
from spanreplay.runtime.patches import Patches, require
from spanreplay.seams.machine.brokers.kafka import listeners, looks
from spanreplay.seams.machine.brokers.kafka.askers import asking_run
from spanreplay.seams.machine.brokers.kafka.calls import CLIENTS
from spanreplay.seams.machine.brokers.kafka.kafka_python_futures import make_future
from spanreplay.seams.machine.brokers.kafka.python_clients import (
    bind,
    note,
    patch_methods,
    run_of,
    state_of,
    subscribing,
)
from spanreplay.seams.machine.brokers.kafka.reports import Reports
from spanreplay.seams.machine.brokers.kafka.serializing import Serialized, describe_message, unwrap_partitioned
from spanreplay.seams.machine.databases.postgres import is_replayed_here

_PARAMETERS: Final = ("topic", "value", "key", "headers", "partition", "timestamp_ms")
_SERIALIZERS: Final = ("key_serializer", "value_serializer")
_REPORTS: Final = "_spanreplay_reports"
_CLEANUPS: Final = frozenset({"__del__", "wrapper"})
_FRAMES_MAX: Final = 8


def _make(wrapped: Any, client: Any, args: Any, kwargs: Any) -> None:
    """Make a client: it connects at once."""
    state = note(client, {**kwargs, **({"topics": list(args)} if args else {})})
    vars(client)[_REPORTS] = Reports()
    run = asking_run(CLIENTS)
    if run is None:
        wrapped(*args, **kwargs)
        return
    shown = {"topics": list(args)} if args else {}
    made: list[bool] = []

    def live() -> None:
        with plumbing():
            wrapped(*args, **kwargs)
        made.append(True)

    if is_replayed_here():
        client._closed = state.is_served = True  # nothing is left to close, whatever it ends with
    call_sync(lambda: state.describe("connect", shown, Effect.READ), live)
    if made:
        state.is_served = False
    else:
        _keep_settings(client, kwargs)


def _keep_settings(client: Any, given: Mapping[str, Any]) -> None:
    """Give a client that is not made what its own methods read before a call."""
    client._closed = False
    client.config = {**copy.copy(type(client).DEFAULT_CONFIG), **given}
    module = sys.modules[_base_of(client).__module__]
    wrapper, abstract = getattr(module, "SerializeWrapper", None), getattr(module, "Serializer", None)
    for name in _SERIALIZERS:
        each = client.config.get(name)
        if each is not None and wrapper is not None and abstract is not None and not isinstance(each, abstract):
            client.config[name] = wrapper(each)


def _base_of(client: Any) -> type:
    return next(each for each in type(client).__mro__ if "DEFAULT_CONFIG" in vars(each))


def _is_cleanup() -> bool:
    """Whether the client closes itself: at the end of the process, or when nobody uses it any more."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return False
        if frame.f_code.co_name in _CLEANUPS and f"{_PACKAGE}." in f"{frame.f_globals.get('__name__')}.":
            return True
        frame = frame.f_back
    return False


_PACKAGE: Final = "kafka"


def _close(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    leave(client)
    state = state_of(client)
    if state is None or getattr(client, "_closed", True) or _is_cleanup():
        if state is not None and state.is_served:
            return None
        with plumbing():
            return wrapped(*args, **kwargs)
    run, state = run_of(client)
    if run is None or state is None:
        return None if state is not None and state.is_served else wrapped(*args, **kwargs)
    reports: Reports = vars(client)[_REPORTS]

    def live() -> int:
        with plumbing():
            wrapped(*args, **kwargs)
        return reports.count(run)

    count = call_sync(lambda: state.describe("close", {}, Effect.READ), live)
    client._closed = True
    reports.wait(run, count)
    return None


# ── Producers ───────────────────────────────────────────────────────────────────────────────────────
def _serialize(wrapped: Any, producer: Any, args: Any, kwargs: Any) -> Any:
    """Serialize a part of a message, unless that has been done."""
    last = args[-1] if args else None
    return last.raw if isinstance(last, Serialized) else wrapped(*args, **kwargs)


def _serialize_part(producer: Any, name: str, given: Mapping[str, Any]) -> Any:
    parts = [producer.config[f"{name}_serializer"], given.get("topic")]
    if len(inspect.signature(producer._serialize).parameters) > len(parts) + 1:
        parts.append(given.get("headers") or [])
    return producer._serialize(*parts, given.get(name))


def _send(wrapped: Any, producer: Any, args: Any, kwargs: Any) -> Any:
    run, state = run_of(producer)
    given: dict[str, Any] = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
    if run is None or state is None or getattr(producer, "_closed", True):
        return wrapped(*args, **kwargs)
    raw = {name: _serialize_part(producer, name, given) for name in ("key", "value")}
    shown = describe_message({**given, **raw})
    sent = {**given, **{name: Serialized.of(given.get(name), raw[name]) for name in raw}}
    made: list[Any] = []

    def live() -> None:
        made.append(wrapped(**sent))

    call_sync(lambda: state.describe("produce", shown, Effect.IRREVERSIBLE), live)
    base = sys.modules[_base_of(producer).__module__].FutureRecordMetadata
    return make_future(base, made[0] if made else None, state, vars(producer)[_REPORTS])


def _flush(wrapped: Any, producer: Any, args: Any, kwargs: Any) -> None:
    run, state = run_of(producer)
    if run is None or state is None:
        wrapped(*args, **kwargs)
        return
    reports: Reports = vars(producer)[_REPORTS]

    def live() -> int:
        wrapped(*args, **kwargs)
        return reports.count(run)

    reports.wait(run, call_sync(lambda: state.describe("flush", {}, Effect.READ), live))


# ── Consumers ───────────────────────────────────────────────────────────────────────────────────────
def _look(name: str, wrapped: Any, consumer: Any, args: Any, kwargs: Any, nothing: Any) -> Any:
    run, state = run_of(consumer)
    if run is None or state is None:
        return wrapped(*args, **kwargs)
    given = {**dict(zip(("timeout_ms",), args, strict=False)), **kwargs}.get("timeout_ms") or 0
    shown = bind(wrapped, consumer, args, kwargs)
    look = looks.Look(
        describe=lambda: state.describe(name, shown, Effect.READ),
        live=lambda: wrapped(*args, **kwargs),
        show=lambda found: found,
        build=lambda found: found,
        is_nothing=lambda found: found == nothing,
        nothing=nothing,
        call_back=lambda which, told: listeners.told_again(state, which, told),
        describe_callback=lambda which: state.describe(which, {}, Effect.READ),
        timeout_s=min(float(given), 1000.0) / 1000 if isinstance(given, (int, float)) else 0.0,
    )
    source = state.settings.source(consumer)
    taker = find_taker(source)
    if taker is not None:
        plumbed = look._replace(live=lambda: _in_background(wrapped, consumer, args, kwargs))
        return looks.take(taker, source, plumbed, _headers_of)
    return looks.look_again(run, look) if is_replayed_here() else looks.look_live(run, look)


def _headers_of(found: Any) -> dict[str, Any]:
    """Return the headers of the first message."""
    first = next(iter(found.values()))[0] if isinstance(found, dict) else found[0]
    return dict(first.headers or ())


def _poll(wrapped: Any, consumer: Any, args: Any, kwargs: Any) -> Any:
    return _look("poll", wrapped, consumer, args, kwargs, {})


def _next(wrapped: Any, consumer: Any, args: Any, kwargs: Any) -> Any:
    run, state = run_of(consumer)
    if run is None or state is None or getattr(consumer, "_closed", True):
        return wrapped(*args, **kwargs)

    def live() -> list[Any]:
        try:
            with plumbing():
                return [wrapped(*args, **kwargs)]
        except StopIteration:
            return []

    described, source = (
        partial(state.describe, "poll", {"iterates": True}, Effect.READ),
        state.settings.source(consumer),
    )
    taker = find_taker(source)
    if taker is None:
        found = call_sync(described, live)
    else:
        found = taker.take(Taking(source, described, is_nothing=operator.not_, headers=_headers_of), live)
    if not found:
        raise StopIteration
    return found[0]


def _commit_async(wrapped: Any, consumer: Any, args: Any, kwargs: Any) -> Any:
    run, state = run_of(consumer)
    if run is None or state is None:
        return wrapped(*args, **kwargs)
    if kwargs.get("callback") is not None or len(args) > 1:
        run.resolver.leave_out("a callback was told of a commit by kafka-python: that is not recorded")
    given = bind(wrapped, consumer, args, kwargs)
    made: list[Any] = []

    def live() -> None:
        made.append(wrapped(*args, **kwargs))

    call_sync(lambda: state.describe("commit", given, Effect.IRREVERSIBLE), live)
    base = sys.modules[_FUTURE].Future
    return make_future(base, made[0] if made else None, state, vars(consumer)[_REPORTS])


_FUTURE: Final = "kafka.future"
_CLASSES: Final[Mapping[str, tuple[Mapping[str, Any], str]]] = {
    "KafkaProducer": (
        {
            "__init__": _make,
            "close": _close,
            "send": _send,
            "flush": _flush,
            "_serialize": _serialize,
            "_partition": unwrap_partitioned,
        },
        "max_usable_produce_magic",
    ),
    "KafkaConsumer": (
        {
            "__init__": _make,
            "close": _close,
            "poll": _poll,
            "__next__": _next,
            "subscribe": subscribing(listeners.listen),
            "commit_async": _commit_async,
        },
        "",
    ),
    "KafkaAdminClient": ({"__init__": _make, "close": _close}, ""),
}
"""Class → what replaces its methods, and its methods that stay as they are."""
_NEEDED: Final = {
    "KafkaProducer": ("send", "flush", "close", "_serialize", "_partition", "DEFAULT_CONFIG"),
    "KafkaConsumer": ("poll", "subscribe", "commit", "close", "__next__", "DEFAULT_CONFIG"),
    "KafkaAdminClient": ("close", "DEFAULT_CONFIG"),
}


def _in_background(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    with plumbing(), unnumbered_threads():
        return wrapped(*args, **kwargs)


_THREADS: Final[Mapping[str, tuple[str, ...]]] = {
    "Sender": ("start", "run"),
    "NetworkSelector": ("start", "run_forever"),
    "HeartbeatThread": ("start", "run"),
}
"""Classes of the client's own threads, and the methods that start them and that they run; each version has some."""


def install(module: Any, patches: Patches) -> None:
    """Patch one of the client's modules. Raises: AttributeError if it is not as expected."""
    for name, methods in _THREADS.items():
        cls = getattr(module, name, None)
        for each in methods:
            if cls is not None and cls.__module__ == module.__name__ and hasattr(cls, each):
                patches.wrap(cls, each, _in_background)
    for name, (special, inside) in _CLASSES.items():
        cls = getattr(module, name, None)
        if cls is None or cls.__module__ != module.__name__:
            continue
        require(cls, *_NEEDED[name])
        if name == "KafkaProducer":
            require(module, "FutureRecordMetadata")
        patch_methods(cls, patches, special, inside=inside)
