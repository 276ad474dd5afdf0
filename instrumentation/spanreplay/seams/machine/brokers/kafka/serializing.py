"""Messages whose parts a program's serializers make bytes of, before a call: in a replay too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spanreplay.seams.machine.brokers.kafka.values import show_headers, show_sent


class Serialized:
    """A part of a message that is serialized already, on its way through the client."""

    __slots__ = ("original", "raw")

    def __init__(self, original: Any, raw: Any) -> None:
        self.original, self.raw = original, raw

    @classmethod
    def of(cls, original: Any, raw: Any) -> Any:
        """Return a part; None if there is none."""
        return None if original is None and raw is None else cls(original, raw)

    @staticmethod
    def raw_of(value: Any) -> Any:
        """Return a part's bytes."""
        return value.raw if isinstance(value, Serialized) else value


def unwrap_partitioned(wrapped: Any, producer: Any, args: Any, kwargs: Any) -> Any:
    """Choose a partition; a partitioner of the program's own sees its values."""
    own = (each.original if isinstance(each, Serialized) else each for each in args)
    return wrapped(*own, **kwargs)


def describe_message(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a message that are compared."""
    shown: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or (name == "headers" and not value):
            continue
        shown[name] = show_headers(value) if name == "headers" else show_sent(value)
    return shown
