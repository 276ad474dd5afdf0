"""Clients of confluent-kafka on an event loop.

A producer's methods are calls, not those of the producer inside, which is given messages in batches whose bounds depend
on time and on other requests of a service. A consumer's are those of the consumer inside, in a thread, unless each
message is a run of its own: the coroutine that works on it takes it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import read
from spanreplay.runtime.calls.function_calls import call_async
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.calls.taking import Taking, find_taker, leave
from spanreplay.runtime.patches import Patches, require
from spanreplay.runtime.reads import make_loose
from spanreplay.seams.machine.brokers.kafka import confluent_clients
from spanreplay.seams.machine.brokers.kafka.askers import asking_run
from spanreplay.seams.machine.brokers.kafka.calls import CLIENTS
from spanreplay.seams.machine.brokers.kafka.confluent_clients import making
from spanreplay.seams.machine.brokers.kafka.confluent_methods import METHODS, headers_of
from spanreplay.seams.machine.brokers.kafka.confluent_methods import bind as bind_method
from spanreplay.seams.machine.brokers.kafka.confluent_producers import show_parts
from spanreplay.seams.machine.brokers.kafka.python_clients import bind, effect_of, later, note, run_of, state_of
from spanreplay.seams.machine.brokers.kafka.values import KafkaFailure, build, carry_async, show, uncarry
from spanreplay.seams.machine.databases.postgres import is_replayed_here

_PARAMETERS: Final = ("topic", "value", "key")
_WITHOUT: Final = frozenset({"close", "flush", "poll"})
"""Methods that are only told how long to wait."""
_WAITING: Final = make_loose("environment", "kafka.waiting")


def _make(wrapped: Any, producer: Any, args: Any, kwargs: Any) -> None:
    given = args[0] if args else kwargs.get("producer_conf")
    note(producer, given if isinstance(given, Mapping) else {})
    before, making.is_inner = making.is_inner, True
    try:
        wrapped(*args, **kwargs)
    finally:
        making.is_inner = before


async def _ask(state: Any, name: str, arguments: Mapping[str, Any], effect: Effect, live: Callable[[], Any]) -> Any:
    """Make one call, or serve it. Raises: the library's own exceptions."""
    made: list[Any] = []

    async def ask() -> Any:
        with plumbing():
            made.append(await carry_async(live))
        return show(made[0])

    try:
        value = await call_async(lambda: state.describe(name, arguments, effect), ask)
    except KafkaFailure as failure:
        exc = uncarry(failure)
    else:
        return made[0] if made else build(value)
    raise exc


async def _produce(wrapped: Any, producer: Any, args: Any, kwargs: Any) -> Any:
    run, state = run_of(producer)
    if run is None or state is None:
        return await wrapped(*args, **kwargs)
    shown = show_parts({**dict(zip(_PARAMETERS, args, strict=False)), **kwargs})
    made: list[Any] = []

    async def send() -> None:
        made.append(await wrapped(*args, **kwargs))

    await _ask(state, "produce", shown, Effect.IRREVERSIBLE, send)

    async def wait() -> Any:
        return await made[0]

    return later(_deliver(state, wait))


async def _deliver(state: Any, wait: Callable[[], Any]) -> Any:
    return await _ask(state, "delivery", {}, Effect.READ, wait)


def _call(name: str) -> Callable[[Any, Any, Any, Any], Any]:
    effect = effect_of(name)

    async def call(wrapped: Any, producer: Any, args: Any, kwargs: Any) -> Any:
        run, state = run_of(producer)
        if run is None or state is None:
            return await wrapped(*args, **kwargs)
        given = {} if name in _WITHOUT else bind(wrapped, producer, args, kwargs)
        shown = {each: show(value) for each, value in given.items()}
        try:
            return await _ask(state, name, shown, effect, lambda: wrapped(*args, **kwargs))
        finally:
            if name == "close":
                producer._is_closed = True

    return call


def _count(wrapped: Any, producer: Any, args: Any, kwargs: Any) -> int:
    if state_of(producer) is None or asking_run(CLIENTS) is None:
        return int(wrapped())
    return int(read(_WAITING, lambda: int(wrapped())))


def _watch(wrapped: Any, manager: Any, args: Any, kwargs: Any) -> Any:
    """Begin to send what has waited long enough: work of the producer's own."""
    if is_replayed_here():
        return None
    with plumbing():
        return wrapped(*args, **kwargs)


# ── Taking messages ─────────────────────────────────────────────────────────────────────────────────
def _taking(name: str) -> Callable[[Any, Any, Any, Any], Any]:
    method = METHODS["Consumer"][name]

    def give_nothing() -> Any:
        return list(method.nothing) if isinstance(method.nothing, list) else method.nothing

    async def take(wrapped: Any, consumer: Any, args: Any, kwargs: Any) -> Any:
        inner = consumer._consumer
        run, state = confluent_clients.run_of(inner)
        source = None if run is None or state is None else state.settings.source(inner)
        taker = None if source is None else find_taker(source)
        if state is None or source is None or taker is None:
            return await wrapped(*args, **kwargs)

        async def live() -> Any:
            state.taken_above += 1
            try:
                with plumbing():
                    return await wrapped(*args, **kwargs)
            finally:
                state.taken_above -= 1

        return await taker.take_async(
            Taking(
                source,
                lambda: state.describe(name, bind_method(method, args, kwargs), method.effect),
                show,
                lambda value: build(value, inner),
                lambda found: found == method.nothing,
                give_nothing,
                headers_of,
            ),
            live,
        )

    return take


async def _leave(wrapped: Any, consumer: Any, args: Any, kwargs: Any) -> Any:
    leave(consumer._consumer)
    return await wrapped(*args, **kwargs)


def install(module: Any, patches: Patches) -> None:
    """Patch one of the modules of asynchronous clients. Raises: AttributeError if it is not as expected."""
    consumer = getattr(module, "AIOConsumer", None)
    if consumer is not None and consumer.__module__ == module.__name__:
        for name in ("poll", "consume"):
            patches.wrap(consumer, name, _taking(name))
        patches.wrap(consumer, "close", _leave)
        return
    manager = getattr(module, "BufferTimeoutManager", None)
    if manager is not None and manager.__module__ == module.__name__:
        patches.wrap(manager, "start_timeout_monitoring", _watch)
        return
    cls = module.AIOProducer
    require(cls, "produce", "flush", "close")
    patches.wrap(cls, "__init__", _make)
    patches.wrap(cls, "__len__", _count)
    for name, member in list(vars(cls).items()):
        if not name.startswith("_") and inspect.iscoroutinefunction(member):
            patches.wrap(cls, name, _produce if name == "produce" else _call(name))
