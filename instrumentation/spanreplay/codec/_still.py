"""Inspects classes and fills their instances without running any of their code.

`getattr`, `isinstance`, `hash` and `setattr` may run code of a class or metaclass that a recording has chosen. Here
namespaces are read directly, and attributes are written directly into slots and instance dicts.
"""

from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Iterator, Mapping
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Final

from spanreplay.codec._engine import find_row, type_name
from spanreplay.model.canonical import Refused

__all__ = [
    "ABSENT",
    "bases_of",
    "check_behaviour",
    "check_hash",
    "fill",
    "find",
    "instance_dict",
    "is_below",
    "is_plain",
    "loaded_class",
    "module_dict",
    "namespace_of",
]

ABSENT: Final = object()
_BASES: Final = type.__dict__["__mro__"]
_NAMESPACE: Final = type.__dict__["__dict__"]
_MODULE_DICT: Final[Any] = vars(ModuleType)["__dict__"]
_NATIVE: Final = (WrapperDescriptorType, MethodDescriptorType, BuiltinFunctionType)
_PLAIN_SCALARS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_PLAIN_TAGS: Final = frozenset({"datetime", "date", "time", "timedelta", "decimal", "uuid", "timestamp", "pdtimedelta"})
_FIXED_TAGS: Final = frozenset(
    {"datetime", "date", "time", "timedelta", "timezone", "zoneinfo", "offset_zone", "decimal", "fraction", "uuid"}
    | {"path", "range", "pattern", "ellipsis", "timestamp", "pdtimedelta", "period", "interval", "nat", "na", "pytz"}
)
"""Rows whose values are of one class of a known library, hold no other values, and hash by the library's code."""
_GENERATED_NAMES: Final = frozenset({"hash", "__class__", "NotImplemented"})
_GENERATED_FILES: Final = ("<string>", "<attrs generated")


# ── classes ─────────────────────────────────────────────────────────────────────────────────────────
def bases_of(cls: type) -> tuple[type, ...]:
    """The class and its bases, in the order in which attributes are looked up."""
    found: tuple[type, ...] = _BASES.__get__(cls)
    return found


def namespace_of(cls: type) -> Mapping[str, Any]:
    """The attributes that the class itself defines."""
    found: Mapping[str, Any] = _NAMESPACE.__get__(cls)
    return found


def module_dict(module: Any) -> Mapping[str, Any]:
    """The names that a module defines so far; {} if it is not a module. Does not load a lazy module."""
    if not is_below(type(module), ModuleType):
        return {}
    found: Mapping[str, Any] = _MODULE_DICT.__get__(module)
    return found


def is_below(cls: type, *bases: type) -> bool:
    """Whether the class is one of these, or inherits from one."""
    return any(each is base for each in bases_of(cls) for base in bases)


def loaded_class(module: str, name: str) -> type:
    """A class of a loaded module; if there is none, a class that nothing inherits from."""
    found: Any = module_dict(sys.modules.get(module)).get(name)
    return found if is_below(type(found), type) else _Nothing


class _Nothing:
    pass


def find(cls: type, name: str, default: Any = None) -> Any:
    """A class attribute as it is stored: calls no descriptor and no metaclass."""
    for base in bases_of(cls):
        namespace = namespace_of(base)
        if name in namespace:
            return namespace[name]
    return default


def check_behaviour(cls: type, path: str) -> None:
    """Raises: Refused for a class whose instances run code when they are inspected or discarded."""
    if find(cls, "__del__") is not None:
        raise Refused(f"{path}, which runs code when it is thrown away")
    if type(find(cls, "__getattribute__")) not in _NATIVE or type(find(cls, "__class__")) is not GetSetDescriptorType:
        raise Refused(f"{path}, which runs code when it is looked at")
    if any(type(find(type(cls), each)) not in _NATIVE for each in ("__hash__", "__eq__", "__getattribute__")):
        raise Refused(f"{path}, whose class runs code when it is looked at")


# ── instances ───────────────────────────────────────────────────────────────────────────────────────
def instance_dict(built: Any) -> dict[str, Any]:
    """The instance's own attributes.

    Raises: Refused if it has no dict.
    """
    for base in bases_of(type(built)):
        found = namespace_of(base).get("__dict__")
        if type(found) is GetSetDescriptorType:
            held: dict[str, Any] = found.__get__(built)
            return held
    raise Refused(f"{type_name(type(built))}, which takes no attributes")


def fill(built: Any, held: Mapping[str, Any], declared: Mapping[str, Any] | None = None) -> None:
    """Write attributes directly into an instance; `declared` are the class's fields, each with its default.

    A field implemented as a property is left out: the property keeps its value in another attribute.
    Raises: Refused for a name that would hide behaviour of the class.
    """
    cls, fields = type(built), declared or {}
    for name, value in held.items():
        found = find(cls, name, ABSENT)
        if type(found) is MemberDescriptorType:
            found.__set__(built, value)
            continue
        is_default = name in fields and found is fields[name]
        if found is not ABSENT and not is_default and _does_something(name, found):
            if name in fields and is_below(type(found), property):
                continue
            raise Refused(f"{type_name(cls)}, whose {name!a} a recording must not hide")
        instance_dict(built)[name] = value


def _does_something(name: str, found: Any) -> bool:
    """Whether a class attribute is more than a default: a method, a descriptor, a class, or any dunder name."""
    kind = type(found)
    if name.startswith("__") and name.endswith("__"):
        return True
    if is_below(kind, functools.cached_property) or kind.__name__ == "cached_property":
        return False
    return any(find(kind, each) is not None for each in ("__get__", "__set__", "__delete__", "__call__"))


# ── values ──────────────────────────────────────────────────────────────────────────────────────────
def is_plain(value: Any) -> bool:
    """Whether a value consists, at every level, of exactly known plain types: a constructor may inspect it."""
    kind = type(value)
    if kind is list or kind is tuple:
        return all(map(is_plain, value))
    if kind is dict:
        return all(type(key) is str and is_plain(member) for key, member in value.items())
    if kind in _PLAIN_SCALARS:
        return True
    row = find_row(kind)
    return row is not None and row.tag in _PLAIN_TAGS


def check_hash(value: Any) -> None:
    """Raises: Refused for a value whose hash or comparison runs code of an unknown class.

    Methods of Python's own types, and those that dataclasses, attrs, enums and pydantic generate, are allowed.
    """
    kind = type(value)
    if kind in _PLAIN_SCALARS:
        return
    row = find_row(kind)
    if row is not None and row.tag in _FIXED_TAGS:
        return
    if is_below(kind, tuple):
        _check_each(tuple.__iter__(value))
    names = _fields_of(kind)
    for method in (find(kind, "__hash__"), find(kind, "__eq__")):
        if method is None or type(method) in _NATIVE or method is enum.Enum.__dict__["__hash__"]:
            continue
        if _is_generated(method, names):
            _check_each(_held(value, names))
        elif _is_of_pydantic(method):
            _check_each(instance_dict(value).values())
        else:
            raise Refused(f"{type_name(kind)} as a key or in a set: comparing it runs its own code")


def _check_each(values: Any) -> None:
    for value in values:
        check_hash(value)


def _fields_of(kind: type) -> tuple[str, ...]:
    fields = find(kind, "__dataclass_fields__") or {}
    return (*fields, *(each.name for each in find(kind, "__attrs_attrs__") or ()))


def _held(value: Any, names: tuple[str, ...]) -> Iterator[Any]:
    for name in names:
        found = find(type(value), name, ABSENT)
        if type(found) is MemberDescriptorType:
            yield found.__get__(value)
        elif found is ABSENT or not is_below(type(found), property):
            yield instance_dict(value).get(name, found if found is not ABSENT else None)
        else:
            raise Refused(f"{type_name(type(value))} as a key or in a set: comparing it runs its own code")


def _is_generated(method: Any, fields: tuple[str, ...]) -> bool:
    """Whether a decorator generated the method, so that it only reads fields."""
    if type(method) is not FunctionType or not method.__code__.co_filename.startswith(_GENERATED_FILES):
        return False
    return bool(fields) and _GENERATED_NAMES.union(fields).issuperset(method.__code__.co_names)


def _is_of_pydantic(method: Any) -> bool:
    names = ("pydantic._internal._model_construction", "pydantic.main")
    return type(method) is FunctionType and any(
        method.__globals__ is module_dict(sys.modules.get(name)) for name in names if name in sys.modules
    )
