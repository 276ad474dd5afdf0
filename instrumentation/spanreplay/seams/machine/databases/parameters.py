"""Parameters of a statement as a call holds them: what an object that a driver adapts consists of.

Data stays data. An object of a class written in Python, such as psycopg's `Jsonb` or a class that the agent has
registered an adapter for, is its class and its attributes; of native code, whatever a driver's own wrappers show.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import BuiltinFunctionType
from typing import Any, Final
from uuid import UUID

from spanreplay import codec
from spanreplay.codec import Unserializable

__all__ = ["describe_parameter"]

DEPTH_MAX: Final = 50
CLASS: Final = "class"
"""Member of a described object; its attributes are the others."""
_PLAIN: Final = frozenset(
    {type(None), bool, int, float, str, bytes, bytearray, Decimal, date, datetime, time, timedelta, UUID}
)
_WRAPPED: Final = "adapted"
"""Attribute of psycopg2's wrappers, which are native code."""


def describe_parameter(value: Any, depth: int = 0) -> Any:
    """Return a parameter as a value that the codec knows; one of which nothing can be said is returned unchanged."""
    kind = type(value)
    if kind in _PLAIN or depth > DEPTH_MAX:
        return value
    if kind is list or kind is tuple:
        members = [describe_parameter(each, depth + 1) for each in value]
        return value if all(map(_is_same, members, value)) else kind(members)
    if kind is dict:
        named = {name: describe_parameter(each, depth + 1) for name, each in value.items()}
        return value if all(map(_is_same, named.values(), value.values())) else named
    try:
        codec.encode(value)
    except Unserializable:
        return _describe_object(value, kind, depth)
    return value


def _is_same(described: Any, value: Any) -> bool:
    return described is value


def _describe_object(value: Any, kind: type, depth: int) -> Any:
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"({value.__module__}.{value.__qualname__})"
    if hasattr(kind, "cursor"):  # a connection, which an adapter keeps for the server's quoting
        return f"({kind.__name__})"
    state = _state_of(value, kind)
    if state is None:
        return value
    return {CLASS: f"{kind.__module__}.{kind.__qualname__}", **describe_parameter(state, depth + 1)}


def _state_of(value: Any, kind: type) -> dict[str, Any] | None:
    """Return an object's attributes; None if native code may hold more than these."""
    if any(type(vars(each).get("__new__")) is BuiltinFunctionType for each in kind.__mro__[:-1]):
        return {_WRAPPED: value.adapted} if hasattr(kind, _WRAPPED) else None
    slots = [name for each in kind.__mro__ for name in _slots_of(each)]
    state = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    state.update(getattr(value, "__dict__", {}))
    return state or None


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    mangled = f"_{kind.__name__.lstrip('_')}"
    return tuple(
        f"{mangled}{name}" if name.startswith("__") and not name.endswith("__") else name
        for name in names
        if name not in ("__dict__", "__weakref__")
    )
