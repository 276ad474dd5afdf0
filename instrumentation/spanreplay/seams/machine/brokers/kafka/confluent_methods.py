"""Methods of confluent-kafka's clients as calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from spanreplay.model.call import Effect
from spanreplay.runtime.calls.function_calls import call_sync
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.calls.taking import find_taker, leave
from spanreplay.seams.machine.brokers.kafka import looks
from spanreplay.seams.machine.brokers.kafka.calls import hide
from spanreplay.seams.machine.brokers.kafka.confluent_clients import State, called_back, run_of
from spanreplay.seams.machine.brokers.kafka.confluent_producers import produce, produce_batch, reported
from spanreplay.seams.machine.brokers.kafka.values import KafkaFailure, build, show, uncarry
from spanreplay.seams.machine.databases.postgres import is_replayed_here

_CHANGES: Final = Effect.IRREVERSIBLE
_READS: Final = Effect.READ
_TIMEOUTS: Final = frozenset({"timeout", "request_timeout", "operation_timeout"})
_CALLBACKS: Final = ("on_assign", "on_revoke", "on_lost")
_SECRETS: Final = frozenset({"username", "password"})


class Method(NamedTuple):
    """One method."""

    parameters: tuple[str, ...]
    effect: Effect
    looks: bool = False
    """Whether the program is called back in it."""
    nothing: Any = None
    """What it returns if it found nothing, where that is no call."""
    takes: bool = False
    """Whether it takes messages."""


def _of(parameters: str, effect: Effect = _READS, **rest: Any) -> Method:
    return Method(tuple(parameters.split()), effect, **rest)


_NEVER: Final = object()
_COMMON: Final[Mapping[str, Method]] = {
    "list_topics": _of("topic timeout"),
    "cluster_id": _of("timeout"),
    "set_sasl_credentials": _of("username password"),
    "close": _of("", looks=True, nothing=_NEVER),
}
METHODS: Final[Mapping[str, Mapping[str, Method]]] = {
    "Producer": {
        **_COMMON,
        "poll": _of("timeout", looks=True, nothing=0),
        "flush": _of("timeout", looks=True, nothing=_NEVER),
        "purge": _of("in_queue in_flight blocking", _CHANGES, looks=True, nothing=_NEVER),
        "init_transactions": _of("timeout", _CHANGES),
        "begin_transaction": _of("", _CHANGES),
        "send_offsets_to_transaction": _of("positions group_metadata timeout", _CHANGES),
        "commit_transaction": _of("timeout", _CHANGES, looks=True, nothing=_NEVER),
        "abort_transaction": _of("timeout", _CHANGES, looks=True, nothing=_NEVER),
    },
    "Consumer": {
        **_COMMON,
        "poll": _of("timeout", looks=True, takes=True),
        "consume": _of("num_messages timeout", looks=True, nothing=[], takes=True),
        "subscribe": _of("topics on_assign on_revoke on_lost"),
        "unsubscribe": _of(""),
        "assign": _of("partitions"),
        "incremental_assign": _of("partitions"),
        "unassign": _of(""),
        "incremental_unassign": _of("partitions"),
        "assignment": _of(""),
        "store_offsets": _of("message offsets", _CHANGES),
        "commit": _of("message offsets asynchronous", _CHANGES),
        "committed": _of("partitions timeout"),
        "position": _of("partitions"),
        "pause": _of("partitions"),
        "resume": _of("partitions"),
        "seek": _of("partition"),
        "get_watermark_offsets": _of("partition timeout cached"),
        "offsets_for_times": _of("partitions timeout"),
        "memberid": _of(""),
        "consumer_group_metadata": _of(""),
    },
    "_AdminClientImpl": {
        "list_topics": _of("topic timeout"),
        "list_groups": _of("group timeout"),
        "cluster_id": _of("timeout"),
        "set_sasl_credentials": _of("username password"),
        "poll": _of("timeout", looks=True, nothing=0),
    },
    "ShareConsumer": {},
}
"""C type → its methods that are calls; every other method makes a run incomplete."""
_OWN: Final = frozenset({"__enter__", "__exit__"})


def methods_of(raw: type) -> dict[str, Callable[..., Any]]:
    """Return what replaces the public methods of a C type."""
    table = METHODS.get(raw.__name__, {})
    made: dict[str, Callable[..., Any]] = {}
    for name, real in list(vars(raw).items()):
        if name.startswith("_") or not callable(real):
            continue
        method = table.get(name)
        own: Callable[..., Any]
        if name == "produce":
            own = functools.partial(produce, real)
        elif name == "produce_batch":
            own = functools.partial(produce_batch, real)
        elif method is None:
            own = functools.partial(_refuse, name, real)
        else:
            own = functools.partial(_look if method.looks else _call, name, method, real)
        made[name] = as_method(own, real)
    if "__exit__" in vars(raw):
        made["__exit__"] = as_method(functools.partial(_exit, made.get("close")), vars(raw)["__exit__"])
    return made


def as_method(own: Callable[..., Any], real: Any) -> Callable[..., Any]:
    """Return a function that becomes a method."""

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return own(self, args, kwargs)

    functools.update_wrapper(method, real, assigned=("__name__", "__qualname__", "__doc__"), updated=())
    return method


def bind(method: Method, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are compared, by name."""
    given = {**dict(zip(method.parameters, args, strict=False)), **kwargs}
    shown: dict[str, Any] = {}
    for name, value in given.items():
        if name in _TIMEOUTS or (name in _CALLBACKS and callable(value)) or value is None:
            continue
        if name in _SECRETS:
            shown[name] = hide([value] if name == "password" else [])
        elif name == "message":
            shown[name] = {part: getattr(value, part)() for part in ("topic", "partition", "offset")}
        else:
            shown[name] = show(value)
    return shown


def _timeout_of(method: Method, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
    given = {**dict(zip(method.parameters, args, strict=False)), **kwargs}.get("timeout", -1)
    if not isinstance(given, (int, float)):
        return 0.0
    return float(given) if given >= 0 else 1.0


def _call(name: str, method: Method, real: Any, client: Any, args: Any, kwargs: Any) -> Any:
    run, state = run_of(client)
    if run is None or state is None:
        return real(client, *args, **kwargs)
    if name == "subscribe":
        args, kwargs = _take_callbacks(state, method, args, kwargs)
    made: list[Any] = []

    def live() -> Any:
        made.append(state.awake(lambda: real(client, *args, **kwargs)))
        return show(made[0])

    try:
        value = call_sync(lambda: state.describe(name, bind(method, args, kwargs), method.effect), live)
        return made[0] if made else build(value, client)
    except KafkaFailure as failure:
        exc = uncarry(failure)
    raise exc


def _take_callbacks(state: State, method: Method, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
    given = {**dict(zip(method.parameters, args, strict=False)), **kwargs}
    if len(args) > len(method.parameters):
        return args, kwargs
    return (), {
        name: called_back(state, name, value) if name in _CALLBACKS and callable(value) else value
        for name, value in given.items()
    }


def _look(name: str, method: Method, real: Any, client: Any, args: Any, kwargs: Any) -> Any:
    if name == "close":
        leave(client)
    run, state = run_of(client)
    if run is None or state is None:
        return real(client, *args, **kwargs)
    if method.takes and state.taken_above:
        with plumbing():
            return real(client, *args, **kwargs)

    def call_back(which: str, shown: Any) -> None:
        if which == "delivery":
            reported(state, run, shown)
            return
        callback = state.callbacks.get(which)
        if callback is not None:
            callback(*(build(each, client) for each in shown))

    look = looks.Look(
        describe=lambda: state.describe(name, bind(method, args, kwargs), method.effect),
        live=lambda: state.woken(lambda: real(client, *args, **kwargs)),
        show=show,
        build=lambda value: build(value, client),
        is_nothing=lambda found: method.nothing is not _NEVER and found == method.nothing,
        nothing=list(method.nothing) if type(method.nothing) is list else method.nothing,
        call_back=call_back,
        describe_callback=lambda which: state.describe(which, {}, Effect.READ),
        timeout_s=_timeout_of(method, args, kwargs),
    )
    source = state.settings.source(client)
    taker = find_taker(source) if method.takes else None
    if taker is not None:
        return looks.take(taker, source, look, headers_of)
    return looks.look_again(run, look) if is_replayed_here() else looks.look_live(run, look)


def headers_of(found: Any) -> dict[str, Any]:
    """Return the headers of a message, or of the first one."""
    first = found[0] if isinstance(found, list) else found
    return dict(first.headers() or ())


def _exit(close: Callable[[Any], Any] | None, client: Any, args: Any, kwargs: Any) -> None:
    if close is not None:
        close(client)


def _refuse(name: str, real: Any, client: Any, args: Any, kwargs: Any) -> Any:
    run, _ = run_of(client)
    if run is not None:
        run.resolver.leave_out(f"{name} of a client of Kafka was used: it is not recorded")
    return real(client, *args, **kwargs)
