"""Messages that FastStream's subscribers get from each broker, as plain values and back."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from spanreplay.seams.machine.brokers.aio_pika_client.frames import headers_of, pack_incoming, unpack

__all__ = ["Form", "broker_of", "form_of"]

_FIELD: Final = b"__data__"
"""The field of a stream's entry in Redis that holds a message in FastStream's own format."""
_BODY, _HEADERS, _DATA = "body", "headers", "data"


class Form(ABC):
    """How the messages of one broker are recorded and made again."""

    @abstractmethod
    def show(self, subscriber: Any, message: Any) -> Any:
        """Return what is recorded of a message."""

    @abstractmethod
    def build(self, shown: Any) -> Any:
        """Return the message that was shown."""

    @abstractmethod
    def headers(self, shown: Any) -> Mapping[str, Any]:
        """Return the headers of what is recorded; of several messages, those of the first."""


class _OfRedis(Form):
    """Messages of lists, streams and channels, with what was sent and its headers apart."""

    def show(self, subscriber: Any, message: Mapping[str, Any]) -> Any:
        return {**message, _DATA: _unpack(subscriber.config.message_format, message[_DATA])}

    def build(self, shown: Mapping[str, Any]) -> Any:
        return {**shown, _DATA: _pack(shown[_DATA])}

    def headers(self, shown: Mapping[str, Any]) -> Mapping[str, Any]:
        found = shown[_DATA]
        found = found[0] if isinstance(found, list) and found else found
        found = found.get(_FIELD, found) if isinstance(found, Mapping) else {}
        headers: Mapping[str, Any] = found.get(_HEADERS, {}) if isinstance(found, Mapping) else {}
        return headers


def _unpack(form: Any, raw: Any) -> Any:
    """Return what was sent with body and headers apart, so that redaction can read them."""
    if isinstance(raw, list):
        return [_unpack(form, each) for each in raw]
    if isinstance(raw, Mapping):
        return {name: _unpack(form, each) if name == _FIELD else each for name, each in raw.items()}
    body, headers = form.parse(raw)
    return raw if body == raw else {_BODY: body, _HEADERS: headers}


def _pack(given: Any) -> Any:
    """Return what was sent, for a message of FastStream's own in the format that all its versions read."""
    if isinstance(given, list):
        return [_pack(each) for each in given]
    if isinstance(given, Mapping) and given.keys() == {_BODY, _HEADERS}:
        return json.dumps({_DATA: given[_BODY].decode(), _HEADERS: given[_HEADERS]}).encode()
    return {name: _pack(each) for name, each in given.items()} if isinstance(given, Mapping) else given


class _OfRabbit(Form):
    """Messages of aio-pika; nobody is told of an acknowledgement in a replay."""

    def show(self, subscriber: Any, message: Any) -> Any:
        return pack_incoming(message)

    def build(self, shown: Any) -> Any:
        return import_module("aio_pika.message").IncomingMessage(unpack(shown, None))

    def headers(self, shown: Any) -> Mapping[str, Any]:
        return headers_of(shown)


class _OfKafka(Form):
    """Records of aiokafka, which are plain values, one or several."""

    def show(self, subscriber: Any, message: Any) -> Any:
        return [_fields_of(each) for each in message] if isinstance(message, (list, tuple)) else _fields_of(message)

    def build(self, shown: Any) -> Any:
        made = import_module("aiokafka.structs").ConsumerRecord
        return tuple(made(**each) for each in shown) if isinstance(shown, list) else made(**shown)

    def headers(self, shown: Any) -> Mapping[str, Any]:
        first = shown[0] if isinstance(shown, list) else shown
        return {name: value.decode("utf-8", "replace") for name, value in first[_HEADERS] if value is not None}


def _fields_of(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in type(record).__dataclass_fields__}


class _OfNats(Form):
    """Messages of nats-py, one or several; they answer to nobody."""

    def show(self, subscriber: Any, message: Any) -> Any:
        return [_parts_of(each) for each in message] if isinstance(message, list) else _parts_of(message)

    def build(self, shown: Any) -> Any:
        made = import_module("nats.aio.msg").Msg
        return [made(None, **each) for each in shown] if isinstance(shown, list) else made(None, **shown)

    def headers(self, shown: Any) -> Mapping[str, Any]:
        first = shown[0] if isinstance(shown, list) else shown
        return first[_HEADERS] or {}


def _parts_of(message: Any) -> dict[str, Any]:
    """Return a message's parts. Raises: AttributeError for entries of a bucket, which are no messages."""
    headers = None if message.headers is None else dict(message.headers)
    return {"subject": message.subject, "reply": message.reply, _DATA: message.data, _HEADERS: headers}


_FORMS: Final[Mapping[str, Form]] = {
    "redis": _OfRedis(),
    "rabbit": _OfRabbit(),
    "kafka": _OfKafka(),
    "nats": _OfNats(),
}


def broker_of(owner: Any) -> str:
    """Return the name of the broker that a class of FastStream, or an object of one, is for."""
    cls = owner if isinstance(owner, type) else type(owner)
    return cls.__module__.split(".")[1]


def form_of(subscriber: Any) -> Form | None:
    """Return the form of a subscriber's messages; None for a broker without units."""
    return _FORMS.get(broker_of(subscriber))
