"""Arguments of a client's method as they are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["show_with"]

_PLAIN: Final = (str, bytes, int, float, type(None))
_DEPTH_MAX: Final = 8


def show_with(other: Callable[[Any, int], Any], value: Any, depth: int = 0) -> Any:
    """Return a value with plain texts, numbers, mappings and lists; `other` returns that of anything else.

    `other` gets the depth too, for what is inside it.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if depth < _DEPTH_MAX and isinstance(value, Mapping):
        return {str(name): show_with(other, each, depth + 1) for name, each in value.items()}
    if depth < _DEPTH_MAX and isinstance(value, (list, tuple)):
        return [show_with(other, each, depth + 1) for each in value]
    return other(value, depth)
