"""Values of asyncpg that a recording holds: its own types, nested records, descriptions of statements."""

from __future__ import annotations

import datetime as dt
import ipaddress
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from importlib import import_module
from typing import Any, Final

__all__ = ["Held", "hold", "hold_argument", "release"]

_ADDRESSES: Final = (
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    ipaddress.IPv4Network,
    ipaddress.IPv6Network,
    ipaddress.IPv4Interface,
    ipaddress.IPv6Interface,
)
_SLOTTED: Final = ("Range", "BitString", "Path", "Polygon")
"""Classes of `asyncpg.types` that keep their state in slots only."""
_SIMPLE: Final = frozenset(
    {type(None), bool, int, float, str, bytes, dt.datetime, dt.date, dt.time, dt.timedelta, Decimal, uuid.UUID}
)
"""Classes of values that the codec knows."""
Make = Callable[[list[str], list[list[Any]]], Any]


@dataclass(frozen=True)
class Held:
    """A value that the codec doesn't know, by the name of its type and its state."""

    kind: str
    state: Any


def _module() -> Any:
    return sys.modules["asyncpg"]


def _is_own_uuid(value: Any) -> bool:
    return isinstance(value, uuid.UUID) and type(value) is not uuid.UUID


def hold(value: Any) -> Any:
    """Return a value of a row in the form in which it is recorded."""
    kind = type(value)
    if kind in _SIMPLE:
        return value
    if kind in (list, tuple, set, frozenset):
        return kind(map(hold, value))
    if kind is dict:
        return {key: hold(each) for key, each in value.items()}
    asyncpg = _module()
    if isinstance(value, asyncpg.Record):
        keys, values = asyncpg.Record.keys(value), asyncpg.Record.values(value)
        return Held("Record", [list(keys), list(map(hold, values))])
    if _is_own_uuid(value):
        return Held("UUID", str(value))
    if kind in _ADDRESSES:
        return Held(kind.__name__, str(value))
    for name in _SLOTTED:
        if kind is getattr(asyncpg.types, name, None):
            return Held(name, {slot: hold(getattr(value, slot)) for slot in _slots(kind)})
    return value


def hold_argument(value: Any) -> Any:
    """Return an argument of a statement in the form in which it is compared."""
    if type(value) in (list, tuple):
        return type(value)(map(hold_argument, value))
    return uuid.UUID(int=value.int) if _is_own_uuid(value) else hold(value)


def _slots(kind: type) -> list[str]:
    named = (vars(each).get("__slots__", ()) for each in kind.__mro__)
    return [slot for slots in named for slot in ((slots,) if isinstance(slots, str) else slots)]


def release(value: Any, make: Make) -> Any:
    """Rebuild what `hold` has made; `make(columns, rows)` makes records."""
    kind = type(value)
    if kind in _SIMPLE:
        return value
    if kind in (list, tuple, set, frozenset):
        return kind(release(each, make) for each in value)
    if kind is dict:
        return {key: release(each, make) for key, each in value.items()}
    return _rebuild(value, make) if kind is Held else value


def _rebuild(held: Held, make: Make) -> Any:
    if held.kind == "Record":
        columns, values = held.state
        return make(columns, [[release(each, make) for each in values]])[0]
    if held.kind == "UUID":
        return import_module("asyncpg.pgproto.pgproto").UUID(held.state)
    address = next((each for each in _ADDRESSES if each.__name__ == held.kind), None)
    if address is not None:
        return address(held.state)
    if held.kind not in _SLOTTED:
        return held
    built = object.__new__(getattr(_module().types, held.kind))
    for slot, value in held.state.items():
        object.__setattr__(built, slot, release(value, make))
    return built
