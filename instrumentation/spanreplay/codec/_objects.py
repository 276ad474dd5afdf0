"""Codecs of classes that hold data: dataclasses, attrs, enums, named tuples, subclasses of builtins.

None of them runs `__init__`, `__post_init__` or a validator on decode: the state comes back as it was.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from spanreplay.canonical import Refused
from spanreplay.codec._engine import Decoder, Encoder, Row
from spanreplay.codec._lookup import class_path, load_class

__all__ = [
    "ATTRS",
    "CLASS",
    "DATACLASS",
    "ENUM",
    "NAMEDTUPLE",
    "SUBCLASS",
    "is_model_class",
    "restore_fields",
]

# Order matters: the first base that fits is the one whose storage is copied.
_BASES: Final[dict[str, type]] = {
    base.__name__: base for base in (OrderedDict, dict, list, set, frozenset, tuple, str, bytes, bytearray, int, float)
}


def _has_builtin_storage(kind: type) -> bool:
    return issubclass(kind, (*_BASES.values(), BaseException, type))


# ── dataclasses and attrs ───────────────────────────────────────────────────────────────────────────
def _is_dataclass(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) and not _has_builtin_storage(kind)


def _is_attrs(kind: type) -> bool:
    return isinstance(getattr(kind, "__attrs_attrs__", None), tuple) and not _has_builtin_storage(kind)


def _field_names(kind: type) -> list[str]:
    if dataclasses.is_dataclass(kind):
        return [each.name for each in dataclasses.fields(kind)]
    return [each.name for each in getattr(kind, "__attrs_attrs__", ())]


def _pack_fields(value: Any, enc: Encoder) -> dict[str, Any]:
    names = _field_names(type(value))
    fields = {name: getattr(value, name) for name in names if hasattr(value, name)}
    packed: dict[str, Any] = {"class": class_path(type(value)), "fields": enc.members(fields)}
    # What __post_init__ or a cached property left behind is state as well.
    others = {name: held for name, held in getattr(value, "__dict__", {}).items() if name not in fields}
    if others:
        packed["extra"] = enc.members(others)
    return packed


def _unpack_dataclass(encoded: dict[str, Any], dec: Decoder) -> Any:
    return _unpack_fields(encoded, dec, _checked(encoded, _is_dataclass, "dataclass"))


def _unpack_attrs(encoded: dict[str, Any], dec: Decoder) -> Any:
    return _unpack_fields(encoded, dec, _checked(encoded, _is_attrs, "attrs class"))


def _unpack_fields(encoded: dict[str, Any], dec: Decoder, cls: type) -> Any:
    built: Any = object.__new__(cls)
    fields = dec.members(encoded["fields"])
    unknown = fields.keys() - set(_field_names(cls))
    if unknown:
        raise Refused(f"{encoded['class']}, which has no field {sorted(unknown)[0]!a} any more")
    restore_fields(built, fields)
    if "extra" in encoded:
        built.__dict__.update(dec.members(encoded["extra"]))
    return built


def restore_fields(built: Any, fields: dict[str, Any]) -> None:
    """Set fields past frozen classes and `__setattr__` hooks."""
    for name, value in fields.items():
        object.__setattr__(built, name, value)


def _checked(encoded: dict[str, Any], matches: Any, what: str) -> type:
    cls = load_class(encoded["class"])
    if not matches(cls):
        raise Refused(f"{encoded['class']}, which is no {what}")
    return cls


# ── enums ───────────────────────────────────────────────────────────────────────────────────────────
def _is_enum(kind: type) -> bool:
    return issubclass(kind, enum.Enum)


def _pack_enum(value: enum.Enum, enc: Encoder) -> dict[str, Any]:
    path = class_path(type(value))
    if value._name_ in type(value)._member_map_:
        return {"class": path, "name": value._name_}
    return {"class": path, "value": enc.encode(value._value_)}


def _unpack_enum(encoded: dict[str, Any], dec: Decoder) -> enum.Enum:
    cls = _checked(encoded, _is_enum, "enum")
    assert issubclass(cls, enum.Enum)
    if "name" in encoded:
        member = cls._member_map_.get(encoded["name"])
        if member is None:
            raise Refused(f"{encoded['class']}, which has no member {encoded['name']!a} any more")
        return member
    value = dec.decode(encoded["value"])
    if not issubclass(cls, enum.Flag) or type(value) is not int:
        raise Refused(f"{encoded['class']}, which is no flag")
    return cls(value)


# ── tuples with names, subclasses of builtins ───────────────────────────────────────────────────────
def _is_namedtuple(kind: type) -> bool:
    fields = getattr(kind, "_fields", None)
    return issubclass(kind, tuple) and isinstance(fields, tuple) and all(isinstance(f, str) for f in fields)


def _pack_namedtuple(value: Any, enc: Encoder) -> dict[str, Any]:
    named = dict(zip(type(value)._fields, tuple.__iter__(value), strict=True))
    return {"class": class_path(type(value)), "fields": enc.members(named)}


def _unpack_namedtuple(encoded: dict[str, Any], dec: Decoder) -> Any:
    cls = _checked(encoded, _is_namedtuple, "named tuple")
    fields = dec.members(encoded["fields"])
    names: Iterable[str] = getattr(cls, "_fields", ())
    if set(names) != fields.keys():
        raise Refused(f"{encoded['class']}, whose fields are others now")
    return tuple.__new__(cls, [fields[name] for name in names])


def _is_subclass(kind: type) -> bool:
    if kind in _BASES.values():
        return kind is OrderedDict
    return issubclass(kind, tuple(_BASES.values()))


def _pack_subclass(value: Any, enc: Encoder) -> dict[str, Any]:
    name = next(name for name, base in _BASES.items() if isinstance(value, base))
    base: Any = _BASES[name]
    held: Any
    if issubclass(base, dict):
        held = dict(base.items(value))
    elif base is str:
        held = str.__str__(value)
    elif base in (int, float):
        held = base.__pos__(value)
    elif base in (bytes, bytearray):
        held = bytes(memoryview(value))
    else:
        held = list(base.__iter__(value))
        if base in (set, frozenset):
            held = base(held)
    packed = {"class": class_path(type(value)), "base": name, "value": enc.encode(held)}
    attributes = getattr(value, "__dict__", None)
    if attributes and base is not OrderedDict:
        packed["extra"] = enc.members(attributes)
    return packed


def _unpack_subclass(encoded: dict[str, Any], dec: Decoder) -> Any:
    base: Any = _BASES[encoded["base"]]
    cls = load_class(encoded["class"])
    if not _is_subclass(cls) or not issubclass(cls, base):
        raise Refused(f"{encoded['class']}, which is no {encoded['base']}")
    held = dec.decode(encoded["value"])
    if base in (str, int, float, bytes, tuple, frozenset):
        built = base.__new__(cls, held)
    else:
        built = base.__new__(cls)
        base.__init__(built)
        if issubclass(base, dict):
            for key, value in held.items():
                base.__setitem__(built, key, value)
        elif base is set:
            set.update(built, held)
        else:
            base.extend(built, held)
    if "extra" in encoded:
        built.__dict__.update(dec.members(encoded["extra"]))
    return built


# ── classes themselves ──────────────────────────────────────────────────────────────────────────────
_PLAIN_TYPES: Final = frozenset({*_BASES.values(), bool, complex, object, type(None)})


def is_model_class(cls: type) -> bool:
    """Whether a class may be handed out by name: it only holds data."""
    is_pydantic = any(base.__module__.startswith("pydantic") for base in cls.__mro__)
    families = (_is_dataclass, _is_attrs, _is_enum, _is_namedtuple)
    return cls in _PLAIN_TYPES or is_pydantic or any(matches(cls) for matches in families)


def _pack_class(value: type, _: Encoder) -> dict[str, Any]:
    return {"class": class_path(value)}


def _unpack_class(encoded: dict[str, Any], _: Decoder) -> type:
    return _checked(encoded, is_model_class, "data class")


ENUM: Final = Row("enum", _is_enum, _pack_enum, _unpack_enum)
DATACLASS: Final = Row("dataclass", _is_dataclass, _pack_fields, _unpack_dataclass)
ATTRS: Final = Row("attrs", _is_attrs, _pack_fields, _unpack_attrs)
NAMEDTUPLE: Final = Row("namedtuple", _is_namedtuple, _pack_namedtuple, _unpack_namedtuple)
CLASS: Final = Row("class", lambda kind: issubclass(kind, type), _pack_class, _unpack_class)
SUBCLASS: Final = Row("subclass", _is_subclass, _pack_subclass, _unpack_subclass)
