"""Values of confluent-kafka as JSON values, and back: messages, errors, places in topics."""

from __future__ import annotations

import enum
import importlib
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

_ERROR: Final = "kafka.error"
_PLACE: Final = "kafka.partition"
_MESSAGE: Final = "kafka.message"
_CLIENT: Final = "kafka.client"
_OBJECT: Final = "kafka.object"
_INSTANCE: Final = "kafka.instance"
_PAIRS: Final = "kafka.pairs"
_PARTS: Final = ("topic", "partition", "offset", "key", "value", "headers", "timestamp", "latency", "leader_epoch",
                 "delivery_count")  # fmt: skip
"""Parts of a message: methods of it, and arguments of its class."""
_ADMIN: Final = "confluent_kafka.admin"
_DEPTH_MAX: Final = 20
_OF_CLIENT: Final = ("confluent_kafka", "cimpl")


class KafkaFailure(Exception):
    """An exception of the client as plain values: the name of its class, and its arguments."""

    __slots__ = ("real",)  # no attribute that is recorded
    real: BaseException


def is_of_client(kind: type) -> bool:
    """Whether a class belongs to the client."""
    return (getattr(kind, "__module__", "") or "").partition(".")[0] in _OF_CLIENT


def carry(live: Callable[[], Any]) -> Any:
    """Run `live`. Raises: KafkaFailure for an exception of the client's own."""
    try:
        return live()
    except Exception as exc:
        if not is_of_client(type(exc)):
            raise
        failure = make_failure(exc)
    raise failure


async def carry_async(live: Callable[[], Awaitable[Any]]) -> Any:
    """As `carry`, on an event loop."""
    try:
        return await live()
    except Exception as exc:
        if not is_of_client(type(exc)):
            raise
        failure = make_failure(exc)
    raise failure


def make_failure(exc: BaseException) -> KafkaFailure:
    """Return what is recorded for an exception of the client."""
    failure = KafkaFailure(type(exc).__name__, [show(each) for each in exc.args])
    failure.real = exc
    return failure


def uncarry(failure: KafkaFailure) -> BaseException:
    """Return the client's exception: the real one, or in a replay one with the recorded arguments."""
    real: BaseException | None = getattr(failure, "real", None)
    if real is not None:
        return real
    import confluent_kafka
    from confluent_kafka import cimpl

    name, args = failure.args
    cls = getattr(cimpl, name, None) or getattr(confluent_kafka, name, None) or confluent_kafka.KafkaException
    made: BaseException = cls(*(build(each) for each in args))
    return made


# ── To JSON ─────────────────────────────────────────────────────────────────────────────────────────
def show(value: Any, depth: int = 0) -> Any:
    """Return a value of the client as one that the codec writes; whatever is unknown stays as it is."""
    kind = type(value)
    if value is None or kind in (str, bytes, int, float, bool) or depth > _DEPTH_MAX:
        return value
    if kind is list or kind is tuple:
        return kind(show(each, depth + 1) for each in value)
    if kind is dict:
        if all(name is None or type(name) in (str, int) for name in value):
            return {name: show(each, depth + 1) for name, each in value.items()}
        return {_PAIRS: [[show(name, depth + 1), show(each, depth + 1)] for name, each in value.items()]}
    if not any(is_of_client(each) for each in kind.__mro__):
        return value
    name = kind.__name__
    if name == "KafkaError":
        return {_ERROR: show_error(value)}
    if name == "TopicPartition":
        return {_PLACE: _show_place(value)}
    if name == "Message":
        return {_MESSAGE: show_message(value)}
    if hasattr(kind, "poll") or hasattr(kind, "memberid"):
        return {_CLIENT: True}
    if isinstance(value, (enum.Enum, BaseException, tuple)):
        return value
    if hasattr(value, "__dict__"):
        parts = {each: show(own, depth + 1) for each, own in vars(value).items()}
        return {_INSTANCE: [kind.__module__, kind.__qualname__, [[each, parts[each]] for each in parts]]}
    return {_OBJECT: name}


def show_error(error: Any) -> list[Any]:
    """Return an error's number, text and flags."""
    return [error.code(), error.str(), error.fatal(), error.retriable(), error.txn_requires_abort()]


def _show_place(place: Any) -> dict[str, Any]:
    shown = {"topic": place.topic, "partition": place.partition, "offset": place.offset}
    for name in ("metadata", "leader_epoch", "error"):
        each = getattr(place, name, None)
        if each is not None:
            shown[name] = show_error(each) if name == "error" else each
    return shown


def show_message(message: Any) -> dict[str, Any]:
    """Return the parts of a message that it has."""
    shown: dict[str, Any] = {}
    for name in _PARTS:
        read = getattr(message, name, None)
        each = None if read is None else read()
        if each is not None:
            shown[name] = show(each)
    error = message.error()
    if error is not None:
        shown["error"] = show_error(error)
    return shown


def show_sent(value: Any) -> Any:
    """Return what is sent of a value: a text and its bytes are the same."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return raw
    return value


def show_headers(headers: Any) -> Any:
    """Return headers as pairs, in their order."""
    if headers is None:
        return None
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        return [[name, show_sent(value)] for name, value in pairs]
    except (TypeError, ValueError):  # the client refuses them
        return f"({type(headers).__name__})"


# ── From JSON ───────────────────────────────────────────────────────────────────────────────────────
def build(shown: Any, client: Any = None) -> Any:
    """Return the value that was shown; `client` stands for clients in it."""
    kind = type(shown)
    if kind is list or kind is tuple:
        return kind(build(each, client) for each in shown)
    if kind is not dict:
        return shown
    tag = next(iter(shown), "") if len(shown) == 1 else ""
    if tag == _ERROR:
        return build_error(shown[tag])
    if tag == _PLACE:
        return _build_place(shown[tag])
    if tag == _MESSAGE:
        return build_message(shown[tag])
    if tag == _CLIENT:
        return client
    if tag == _PAIRS:
        return {build(name, client): build(each, client) for name, each in shown[tag]}
    if tag == _INSTANCE:
        return _build_instance(*shown[tag])
    if tag == _OBJECT:
        return _Opaque(shown[tag])
    return {name: build(each, client) for name, each in shown.items()}


def _build_instance(module: str, name: str, parts: list[list[Any]]) -> Any:
    """Return an object of one of the client's classes in Python, without running its `__init__`."""
    if module.startswith(_ADMIN) and _ADMIN not in sys.modules:
        importlib.import_module(_ADMIN)  # the library does so when it answers
    cls: Any = getattr(sys.modules.get(module), name, None)
    if not isinstance(cls, type) or not is_of_client(cls):
        return _Opaque(name)
    made: Any = object.__new__(cls)
    vars(made).update((each, build(own)) for each, own in parts)
    return made


class _Opaque:
    """Stands for an object of the client that only the client reads."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name} [replayed]>"


def build_error(shown: list[Any]) -> Any:
    """Return an error of the client."""
    from confluent_kafka import KafkaError

    return KafkaError(*shown)


def _build_place(shown: Mapping[str, Any]) -> Any:
    from confluent_kafka import TopicPartition

    rest = {name: shown[name] for name in ("metadata", "leader_epoch") if name in shown}
    made = TopicPartition(shown["topic"], shown["partition"], shown["offset"], **rest)
    return _PlaceWithError(made, build_error(shown["error"])) if "error" in shown else made


class _PlaceWithError:
    """A place in a topic with its error, which the client's own class can't be given."""

    def __init__(self, place: Any, error: Any) -> None:
        self._place, self.error = place, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)

    def __str__(self) -> str:
        return str(self._place)

    def __eq__(self, other: object) -> bool:
        return bool(self._place == getattr(other, "_place", other))

    def __hash__(self) -> int:
        return hash(self._place)


def build_message(shown: Mapping[str, Any]) -> Any:
    """Return a message of the client's own class; before 2.10 that can't be made."""
    from confluent_kafka import Message

    parts = {name: build(value) for name, value in shown.items()}
    if "error" in parts:
        parts["error"] = build_error(parts["error"])
    if type(parts.get("timestamp")) is list:
        parts["timestamp"] = tuple(parts["timestamp"])
    if type(parts.get("headers")) is list:
        parts["headers"] = [tuple(each) for each in parts["headers"]]
    try:
        return Message(**parts)
    except TypeError:
        return _OldMessage(parts)


class _OldMessage:
    """Stands for a message of a client whose class can't be made by anybody else."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts.get("value") or b"")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("set_"):
            return lambda value: self._parts.__setitem__(name[4:], value)
        if name in (*_PARTS, "error"):
            default = (0, 0) if name == "timestamp" else None
            return lambda: self._parts.get(name, default)
        raise AttributeError(name)
