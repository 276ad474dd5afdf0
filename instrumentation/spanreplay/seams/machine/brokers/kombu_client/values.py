"""Arguments, results and messages of kombu as plain values and back."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from spanreplay import codec

__all__ = ["make_message", "pack_message", "pack_result", "show", "unpack_result"]

_DEPTH_MAX: Final = 8
_PLAIN: Final = (str, bytes, int, float, type(None))
_DRAWN: Final = frozenset({"delivery_tag"})
"""Properties that a transport draws for itself."""
_PARTS: Final = (
    "body", "delivery_tag", "content_type", "content_encoding", "delivery_info", "properties", "headers",
)  # fmt: skip
_MESSAGE, _DECLARED = "message", "declared"


def show(value: Any, depth: int = 0) -> Any:
    """Return an argument as it is compared."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if depth < _DEPTH_MAX and isinstance(value, Mapping):
        return {str(name): show(each, depth + 1) for name, each in value.items() if name not in _DRAWN}
    if depth < _DEPTH_MAX and isinstance(value, (list, tuple, set, frozenset)):
        return [show(each, depth + 1) for each in value]
    if hasattr(value, "body") and hasattr(value, "properties"):
        return {"body": show(value.body, depth + 1), "properties": show(value.properties, depth + 1)}
    name = getattr(value, "name", None)
    if type(value).__module__.startswith("kombu.") and isinstance(name, str):
        return name
    try:
        codec.encode(value)
    except codec.Unserializable:
        return f"({type(value).__name__})"
    return value


def _keep(value: Any, depth: int = 0) -> Any:
    """Return a part of a message as it is recorded."""
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if depth < _DEPTH_MAX and isinstance(value, Mapping):
        return {str(name): _keep(each, depth + 1) for name, each in value.items()}
    return value


def pack_message(message: Any) -> dict[str, Any]:
    """Return one of kombu's messages as a plain value; of a compressed one, the text that it holds."""
    return {name: _keep(getattr(message, name)) for name in _PARTS}


def make_message(value: Mapping[str, Any], channel: Any) -> Any:
    """Return a recorded message of a channel."""
    made = import_module("kombu.message").Message(channel=channel, **{**value, "headers": None})
    made.headers = dict(value["headers"])  # given apart: what was compressed is no longer
    return made


def pack_result(channel: Any, result: Any) -> Any:
    """Return what a channel's method returned as a plain value."""
    if isinstance(result, tuple):
        return {_DECLARED: list(result)}
    if result is None or isinstance(result, (str, int, float)):
        return result
    if hasattr(result, "body") or isinstance(result, Mapping):
        return {_MESSAGE: pack_message(channel.message_to_python(result))}
    return None


def unpack_result(value: Any, channel: Any) -> Any:
    """Return what a channel's method returned."""
    if isinstance(value, Mapping) and _MESSAGE in value:
        return make_message(value[_MESSAGE], channel)
    if isinstance(value, Mapping) and _DECLARED in value:
        fields = value[_DECLARED]
        declared = import_module("amqp.protocol").queue_declare_ok_t
        return declared(*fields) if len(fields) == len(declared._fields) else tuple(fields)
    return value
