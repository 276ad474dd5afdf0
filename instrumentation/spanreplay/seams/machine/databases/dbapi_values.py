"""Values of database drivers as they are recorded: data as data, a driver's own objects as numbered references.

A packed value is a list of a tag and what it stands for. Drivers are native code in part: whatever is neither data nor
an object of the driver is not recorded, and named.
"""

from __future__ import annotations

import sys
from asyncio import Future
from collections.abc import Callable, Coroutine, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from importlib import import_module
from types import BuiltinMethodType, MethodType
from typing import Any, Final
from uuid import UUID

from spanreplay import codec
from spanreplay.codec import Unserializable

__all__ = ["Held", "Row", "describe_class", "find_named", "has_objects", "is_held", "is_of", "pack", "unpack"]

DATA, LIST, TUPLE, DICT, OBJECT, STATE, NAMED, METHOD, ROW, AWAITABLE, UNKNOWN = (
    "data", "list", "tuple", "dict", "object", "state", "named", "method", "row", "awaitable", "unknown",
)  # fmt: skip
_PLAIN: Final = frozenset(
    {type(None), bool, int, float, str, bytes, bytearray, Decimal, date, datetime, time, timedelta, UUID}
)
_TYPES: Final = {f"{each.__module__}:{each.__qualname__}": each for each in (*_PLAIN, list, tuple, dict, set, object)}
"""Types that stand for a column's type."""
_CONTAINERS: Final = (dict, list, set)
_ACTS: Final = ("close", "execute", "cursor", "__next__", "__anext__")
"""Methods of objects that act, and are not data, whatever they consist of."""


class Held:
    """Base of the stand-ins for a driver's objects."""

    __slots__ = ()


def is_held(value: Any) -> bool:
    """Whether a value is a stand-in; isinstance asks it for another class."""
    return issubclass(type(value), Held)


def describe_class(cls: type) -> str:
    """Return `module:qualname`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def package(name: str) -> str:
    """Return the top package of a module's name, without the underscore of its native part."""
    return name.partition(".")[0].lstrip("_")


def is_of(packages: frozenset[str], cls: type) -> bool:
    """Whether a class, or one that it derives from, belongs to a driver."""
    return any(package(str(each.__module__)) in packages for each in cls.__mro__)


class Row(tuple[Any, ...]):
    """A recorded row of a class that native code makes: a sequence whose columns have names too."""

    @property  # type: ignore[misc]  # isinstance asks for it
    def __class__(self) -> Any:
        return vars(self).get("_spanreplay_class", Row)

    def keys(self) -> list[str]:
        """Return the names of the columns."""
        return list(vars(self).get("_spanreplay_names", ()))

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return tuple.__getitem__(self, key)
        names = [name.lower() for name in self.keys()]
        if key.lower() not in names:
            raise IndexError("No item with that key")
        return tuple.__getitem__(self, names.index(key.lower()))

    def __getattr__(self, name: str) -> Any:
        names = vars(self).get("_spanreplay_names", ())
        if name in names:
            return tuple.__getitem__(self, names.index(name))
        raise AttributeError(name)


def find_named(packages: frozenset[str], path: str) -> Any:
    """Return what a driver's module holds at `module:qualname`; None if it is not the driver's or not there."""
    if path in _TYPES:
        return _TYPES[path]
    module_name, _, qualname = path.partition(":")
    if package(module_name) not in packages:
        return None
    try:
        found: Any = sys.modules.get(module_name) or import_module(module_name)
        for name in qualname.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return None
    return found


def _name_of(packages: frozenset[str], module: Any, value: Any) -> str:
    """Return the path of a class, function or constant of a driver's; '' if it has none."""
    if isinstance(value, type) or callable(value):
        home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if isinstance(home, str) and isinstance(name, str):
            path = f"{home}:{name}"
            return path if find_named(packages, path) is value else ""
    return next((f"{module.__name__}:{name}" for name, each in vars(module).items() if each is value), "")


def _is_data(value: Any) -> bool:
    try:
        codec.encode(value)
    except Unserializable:
        return False
    return True


def _only_plain(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is list or kind is tuple:
        return all(type(each) in _PLAIN or _only_plain(each) for each in value)
    if kind is dict:
        return all(type(key) is str and _only_plain(each) for key, each in value.items())
    return False


def _state_of(value: Any, kind: type) -> dict[str, Any] | None:
    """Return what a plain object of a driver's consists of; None for one of native code."""
    slots = [name for cls in kind.__mro__ for name in _names_of_slots(cls)]
    if "__dict__" not in dir(value) and not slots:
        return None
    state = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**state, **getattr(value, "__dict__", {})}


def _names_of_slots(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _build(packages: frozenset[str], path: str, state: dict[str, Any]) -> Any:
    """Return a plain object of a driver's, without running its `__init__`."""
    cls = find_named(packages, path)
    made = object.__new__(cls)
    for name, each in state.items():
        object.__setattr__(made, name, each)
    return made


def has_objects(packed: list[Any]) -> bool:
    """Whether a packed value contains an object that is held."""
    tag, content = packed
    if tag in (LIST, TUPLE):
        return any(has_objects(each) for each in content)
    if tag == DICT:
        return any(has_objects(each) for each in content.values())
    return bool(tag in (OBJECT, METHOD, AWAITABLE))


def _next_of(kind: type) -> str:
    return "__anext__" if hasattr(kind, "__anext__") else "__next__"


def _result_of(value: Coroutine[Any, Any, Any] | Future[Any]) -> list[Any]:
    """Return the result of a future that has one already, in a list."""
    if isinstance(value, Future) and value.done() and not value.cancelled() and value.exception() is None:
        return [value.result()]
    return []


def pack(value: Any, packages: frozenset[str], module: Any, refer: Callable[[Any], Any]) -> list[Any]:
    """Return a value as it is recorded; `refer` gives what stands for an object of the driver."""
    if _only_plain(value):
        return [DATA, value]
    kind = type(value)
    if is_held(value):
        return [OBJECT, refer(value)]
    owner = getattr(value, "__self__", None)
    if is_held(owner) or (isinstance(value, (MethodType, BuiltinMethodType)) and is_of(packages, type(owner))):
        return [METHOD, value.__name__]
    if isinstance(value, (Coroutine, Future)):
        result = _result_of(value)
        return [AWAITABLE, pack(result[0], packages, module, refer) if result else None]
    acts = not isinstance(value, type) and any(hasattr(kind, name) for name in _ACTS)
    if acts and (is_of(packages, kind) or (kind.__module__ == "builtins" and hasattr(kind, _next_of(kind)))):
        return [OBJECT, refer(value)]
    if isinstance(value, type):
        name = _name_of(packages, module, value)
        return [NAMED, name] if name else [UNKNOWN, describe_class(value)]
    if kind is list or kind is tuple:
        items = [pack(each, packages, module, refer) for each in value]
        return [DATA, value] if all(each[0] == DATA for each in items) else [LIST if kind is list else TUPLE, items]
    if kind is dict and all(type(key) is str for key in value):
        members = {key: pack(each, packages, module, refer) for key, each in value.items()}
        return [DATA, value] if all(each[0] == DATA for each in members.values()) else [DICT, members]
    if not acts and _is_data(value):
        return [DATA, value]
    name = _name_of(packages, module, value)
    if name:
        return [NAMED, name]
    is_function = callable(value) and package(str(getattr(value, "__module__", ""))) in packages
    if kind in _CONTAINERS or is_function:  # one of functions, say; the agent may change it
        return [OBJECT, refer(value)]
    if not is_of(packages, kind):
        return [UNKNOWN, describe_class(kind)]
    state = _state_of(value, kind)
    if state is not None:
        packed = {name: pack(each, packages, module, refer) for name, each in state.items()}
        if all(each[0] in (DATA, NAMED, STATE) for each in packed.values()):
            return [STATE, {"class": describe_class(kind), "state": packed}]
    if hasattr(kind, "__len__") and hasattr(kind, "__getitem__") and not isinstance(value, Mapping):
        cells = [pack(value[at], packages, module, refer) for at in range(len(value))]
        return [ROW, {"class": describe_class(kind), "cells": cells}]
    return [OBJECT, refer(value)]


def unpack(packed: Any, packages: frozenset[str], make: Callable[[str, Any], Any]) -> Any:
    """Return the value that was packed; `make(tag, content)` gives objects, methods, rows and unknown values."""
    tag, content = packed
    if tag == DATA:
        return content
    if tag == DICT:
        return {key: unpack(each, packages, make) for key, each in content.items()}
    if tag in (LIST, TUPLE):
        found = [unpack(each, packages, make) for each in content]
        return found if tag == LIST else tuple(found)
    if tag == NAMED:
        return find_named(packages, content)
    if tag == STATE:
        state = {name: unpack(each, packages, make) for name, each in content["state"].items()}
        return _build(packages, content["class"], state)
    if tag == ROW:
        cells = [unpack(each, packages, make) for each in content["cells"]]
        return make(ROW, {"class": find_named(packages, content["class"]) or Row, "cells": cells})
    return make(tag, content)
