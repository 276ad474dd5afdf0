"""Frames and messages of AMQP as plain values and back."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from spanreplay.seams.machine.brokers.shown import show_with

__all__ = ["headers_of", "is_message", "make_frame", "pack", "pack_incoming", "show", "unpack"]

_FRAME, _FIELDS = "frame", "fields"
_DELIVERY, _PROPERTIES, _BODY = "delivery", "properties", "body"
_RAISED: Final = "raised"


# ── What a program gives ────────────────────────────────────────────────────────────────────────────
def show(value: Any, depth: int = 0) -> Any:
    """Return an argument as it is compared: plain values, names of queues and exchanges, a message with its parts."""
    return show_with(_show_other, value, depth)


def _show_other(value: Any, depth: int) -> Any:
    if hasattr(value, _BODY) and hasattr(value, _PROPERTIES):
        return {_BODY: show(value.body), _PROPERTIES: fields_of(value.properties)}
    module = type(value).__module__.partition(".")[0]
    if module == "aio_pika" and isinstance(getattr(value, "name", None), str):
        return value.name
    return value if module in ("datetime", "decimal", "uuid") else f"({type(value).__name__})"


def fields_of(frame: Any) -> dict[str, Any]:
    """Return the fields of a frame, or of a message's properties, that have a value."""
    found = {name: getattr(frame, name, None) for name in frame.attributes()}
    return {name: value for name, value in found.items() if value is not None and value != ""}


# ── What the broker answers ─────────────────────────────────────────────────────────────────────────
def is_message(value: Any) -> bool:
    """Whether an answer of aiormq is a message that was delivered, or given back."""
    return hasattr(value, _DELIVERY) and hasattr(value, "header")


def pack(answer: Any) -> Any:
    """Return an answer of aiormq, or an exception with one, as a plain value."""
    if isinstance(answer, Exception):
        named = f"{type(answer).__module__}.{type(answer).__qualname__}"
        return {_RAISED: named, _DELIVERY: pack(getattr(answer, "message", None)), _FRAME: pack(answer.frame)}  # type: ignore[attr-defined]  # of aiormq's `DeliveryError`
    if is_message(answer):
        properties = fields_of(answer.header.properties)
        return {_DELIVERY: pack(answer.delivery), _PROPERTIES: properties, _BODY: answer.body}
    if hasattr(answer, "attributes") and hasattr(answer, "name"):
        return {_FRAME: answer.name, _FIELDS: {name: getattr(answer, name, None) for name in answer.attributes()}}
    return answer


def pack_incoming(message: Any) -> Any:
    """Return a message that aio-pika gives to a consumer as a plain value."""
    delivery = {name: getattr(message, name) for name in _DELIVERED}
    properties = {**fields_of(message.properties), "cluster_id": message.cluster_id}
    return {
        _DELIVERY: {_FRAME: "Basic.Deliver", _FIELDS: delivery},
        _PROPERTIES: {name: value for name, value in properties.items() if value is not None},
        _BODY: message.body,
    }


def headers_of(packed: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the headers of what `pack_incoming` has packed."""
    found = (packed or {}).get(_PROPERTIES, {}).get("headers")
    return found if isinstance(found, Mapping) else {}


_DELIVERED: Final = ("consumer_tag", "delivery_tag", "redelivered", "exchange", "routing_key")


def make_frame(name: str, fields: Mapping[str, Any]) -> Any:
    """Return a frame, or properties, with these fields; the client's own checks are for frames that it sends."""
    found: Any = import_module("pamqp.commands")
    for part in name.split("."):
        found = getattr(found, part)
    try:
        made = found()
    except TypeError:  # it has fields without a default
        made = found.__new__(found)
        for field in found.attributes():
            setattr(made, field, None)
    for field in found.attributes():
        if field in fields:
            setattr(made, field, fields[field])
    return made


def unpack(value: Any, channel: Any) -> Any:
    """Return an answer as aiormq gives it. Raises: aiormq's `DeliveryError` where the broker did not take a message."""
    if not isinstance(value, Mapping):
        return value
    if _RAISED in value:
        module, _, name = value[_RAISED].rpartition(".")
        raise getattr(import_module(module), name)(unpack(value[_DELIVERY], channel), unpack(value[_FRAME], channel))
    if _DELIVERY in value:
        header = import_module("pamqp.header").ContentHeader(body_size=len(value[_BODY]))
        header.properties = make_frame("Basic.Properties", value[_PROPERTIES])
        delivery = unpack(value[_DELIVERY], channel)
        made = import_module("aiormq.abc").DeliveredMessage
        return made(delivery=delivery, header=header, body=value[_BODY], channel=channel)
    return make_frame(value[_FRAME], value[_FIELDS])
