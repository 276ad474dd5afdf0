"""What happens on a connection of pika while a method waits, as plain values and back.

Frames that the broker sends, timers and functions of other threads that become due, the end of the connection. In a
replay, pika's own code is given the same again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from spanreplay.model import config
from spanreplay.seams.machine.brokers.shown import show_with

__all__ = ["Script", "fields_of", "hear_frame", "make_frame", "make_method", "show"]

_METHOD, _PROPERTIES, _BODY = "method", "properties", "body"
TIMER, HANDED, LOST = "timer", "handed", "lost"
EVENTS_MAX: Final = config.ROWS_MAX


def show(value: Any, depth: int = 0) -> Any:
    """Return an argument as it is compared."""
    return show_with(_show_other, value, depth)


def _show_other(value: Any, depth: int) -> Any:
    if hasattr(value, "NAME"):
        return {name: show(each, depth + 1) for name, each in fields_of(value).items() if each is not None}
    inner = getattr(value, "value", None)
    if isinstance(inner, (str, bytes, int, float)):  # of an enumeration
        return inner
    return value if type(value).__module__ in ("datetime", "decimal") else f"({type(value).__name__})"


def fields_of(found: Any) -> dict[str, Any]:
    """Return the fields of a method or of a message's properties."""
    return {name: value for name, value in vars(found).items() if not name.startswith("_")}


def hear_frame(frame: Any) -> dict[str, Any] | None:
    """Return a frame as it is recorded; None for heartbeats."""
    method = getattr(frame, "method", None)
    if method is not None:
        return {"channel": frame.channel_number, _METHOD: method.NAME, "fields": fields_of(method)}
    properties = getattr(frame, "properties", None)
    if properties is not None:
        shown = {name: value for name, value in fields_of(properties).items() if value is not None}
        return {"channel": frame.channel_number, _PROPERTIES: shown, "size": frame.body_size}
    if hasattr(frame, "fragment"):
        return {"channel": frame.channel_number, _BODY: frame.fragment}
    return None


def make_frame(event: Mapping[str, Any], size: int | None = None) -> Any:
    """Return a recorded frame as pika makes it of what it receives."""
    frames, spec = import_module("pika.frame"), import_module("pika.spec")
    channel = event["channel"]
    if _METHOD in event:
        return frames.Method(channel, make_method(event[_METHOD], event["fields"]))
    if _PROPERTIES in event:
        properties = spec.BasicProperties(**event[_PROPERTIES])
        return frames.Header(channel, event["size"] if size is None else size, properties)
    return frames.Body(channel, event[_BODY])


def make_method(name: str, fields: Mapping[str, Any]) -> Any:
    """Return a method of AMQP with these fields."""
    cls: Any = import_module("pika.spec")
    for part in name.split("."):
        cls = getattr(cls, part)
    method = cls.__new__(cls)
    vars(method).update(fields)
    return method


class Script:
    """What was recorded of one wait."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self._left = deque(events)

    def __len__(self) -> int:
        return len(self._left)

    def take(self) -> dict[str, Any]:
        """Return the next event."""
        return self._left.popleft()

    def size_of(self, header: Mapping[str, Any]) -> int:
        """Return the size of the body that follows a header, if all of it is here; hidden values have another size."""
        total = 0
        for event in self._left:
            if event.get("channel") != header["channel"]:
                continue
            if _BODY not in event:
                return total
            total += len(event[_BODY])
        return max(total, int(header["size"]))
