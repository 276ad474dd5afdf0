"""Codecs of classes that hold data: dataclasses, attrs, enums, named tuples, subclasses of builtins.

Decoding runs no `__init__`, `__post_init__`, property or validator: it restores the recorded state.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from spanreplay.codec._engine import Decoder, Encoder, Row
from spanreplay.codec._lookup import class_path, load_class
from spanreplay.codec._still import ABSENT, fill, find, is_below, loaded_class
from spanreplay.model.canonical import Refused

__all__ = [
    "ATTRS",
    "CLASS",
    "DATACLASS",
    "ENUM",
    "NAMEDTUPLE",
    "SUBCLASS",
    "is_model_class",
]

# Order matters: the first base that fits is the one whose storage is copied.
_BASES: Final[dict[str, type]] = {
    base.__name__: base for base in (OrderedDict, dict, list, set, frozenset, tuple, str, bytes, bytearray, int, float)
}


def _has_builtin_storage(kind: type) -> bool:
    return is_below(kind, *_BASES.values(), BaseException, type)


# ── dataclasses and attrs ───────────────────────────────────────────────────────────────────────────
def _is_dataclass(kind: type) -> bool:
    return type(find(kind, "__dataclass_fields__")) is dict and not _has_builtin_storage(kind)


def _is_attrs(kind: type) -> bool:
    return isinstance(find(kind, "__attrs_attrs__"), tuple) and not _has_builtin_storage(kind)


def _fields_of(kind: type) -> dict[str, Any]:
    """The fields of a dataclass or an attrs class, each with the default that the class holds for it."""
    if _is_dataclass(kind):
        return {each.name: each.default for each in dataclasses.fields(kind)}
    return {each.name: ABSENT for each in find(kind, "__attrs_attrs__", ())}


def _pack_fields(value: Any, enc: Encoder) -> dict[str, Any]:
    fields = {name: getattr(value, name) for name in _fields_of(type(value)) if hasattr(value, name)}
    packed: dict[str, Any] = {"class": class_path(type(value)), "fields": enc.members(fields)}
    # Attributes set by __post_init__ or a cached property are state as well.
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
    declared = _fields_of(cls)
    unknown = fields.keys() - declared.keys()
    if unknown:
        raise Refused(f"{encoded['class']}, which has no field {sorted(unknown)[0]!a} any more")
    fill(built, fields, declared)
    if "extra" in encoded:
        fill(built, dec.members(encoded["extra"]))
    return built


def _checked(encoded: dict[str, Any], matches: Any, what: str) -> type:
    cls = load_class(encoded["class"])
    if not matches(cls):
        raise Refused(f"{encoded['class']}, which is no {what}")
    return cls


# ── enums ───────────────────────────────────────────────────────────────────────────────────────────
FLAG_BITS_MAX: Final = 1_024
"""Largest combination of flags; Python keeps every combination that was ever made."""
_FLAG_MAKERS: Final = ("_missing_", "_create_pseudo_member_", "_new_member_")
"""Methods that make a combination of flags, depending on the version of Python."""
_STOCK_MAKERS: Final = (
    *(kind.__dict__.get(name) for kind in (enum.Flag, enum.IntFlag) for name in _FLAG_MAKERS),
    *(None, object.__new__, int.__new__),
)


def _is_enum(kind: type) -> bool:
    return is_below(kind, enum.Enum)


def _pack_enum(value: enum.Enum, enc: Encoder) -> dict[str, Any]:
    path = class_path(type(value))
    if value._name_ in type(value)._member_map_:
        return {"class": path, "name": value._name_}
    return {"class": path, "value": enc.encode(value._value_)}


def _unpack_enum(encoded: dict[str, Any], dec: Decoder) -> enum.Enum:
    cls: Any = _checked(encoded, _is_enum, "enum")
    members = find(cls, "_member_map_", {})
    if "name" in encoded:
        member: enum.Enum | None = members.get(encoded["name"])
        if member is None:
            raise Refused(f"{encoded['class']}, which has no member {encoded['name']!a} any more")
        return member
    value = dec.decode(encoded["value"])
    if not is_below(cls, enum.Flag) or type(value) is not int:
        raise Refused(f"{encoded['class']}, which is not a flag")
    makes_own = any(all(find(cls, name) is not each for each in _STOCK_MAKERS) for name in _FLAG_MAKERS)
    if makes_own or type(cls) is not enum.EnumMeta or value.bit_length() > FLAG_BITS_MAX:
        raise Refused(f"{encoded['class']}, which makes its values by code of its own")
    combined: enum.Enum = cls(value)
    return combined


# ── tuples with names, subclasses of builtins ───────────────────────────────────────────────────────
def _is_namedtuple(kind: type) -> bool:
    fields = find(kind, "_fields")
    return is_below(kind, tuple) and type(fields) is tuple and all(type(each) is str for each in fields)


def _pack_namedtuple(value: Any, enc: Encoder) -> dict[str, Any]:
    named = dict(zip(type(value)._fields, tuple.__iter__(value), strict=True))
    return {"class": class_path(type(value)), "fields": enc.members(named)}


def _unpack_namedtuple(encoded: dict[str, Any], dec: Decoder) -> Any:
    cls = _checked(encoded, _is_namedtuple, "named tuple")
    fields = dec.members(encoded["fields"])
    names: Iterable[str] = find(cls, "_fields", ())
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
    fits = next((each for each in _BASES.values() if is_below(cls, each)), None)
    is_builtin = cls is base and base is not OrderedDict
    if fits is not base or is_builtin or _is_enum(cls) or _is_namedtuple(cls):
        raise Refused(f"{encoded['class']}, which is no {encoded['base']} of its own")
    built = _build_subclass(cls, base, dec.decode(encoded["value"]))
    if "extra" in encoded:
        fill(built, dec.members(encoded["extra"]))
    return built


def _build_subclass(cls: type, base: Any, held: Any) -> Any:
    expected: Any = dict if base is OrderedDict else list if base is tuple else bytes if base is bytearray else base
    # Exactly a builtin type: constructors would call methods of any other class
    if type(held) is not expected:
        raise Refused(f"something else where a {base.__name__} belongs")
    if base in (str, int, float, bytes, tuple, frozenset):
        return base.__new__(cls, held)
    built = base.__new__(cls)
    base.__init__(built)
    if is_below(base, dict):
        for key, value in held.items():
            base.__setitem__(built, key, value)
    elif base is set:
        set.update(built, held)
    else:
        base.extend(built, held)
    return built


# ── classes themselves ──────────────────────────────────────────────────────────────────────────────
def is_model_class(cls: type) -> bool:
    """Whether decoding may return a class by name: a dataclass, an enum, a named tuple, a pydantic model."""
    is_pydantic = is_below(cls, *(loaded_class(name, "BaseModel") for name in ("pydantic.main", "pydantic.v1.main")))
    return is_pydantic or any(fits(cls) for fits in (_is_dataclass, _is_enum, _is_namedtuple))


def _pack_class(value: type, _: Encoder) -> dict[str, Any]:
    return {"class": class_path(value)}


def _unpack_class(encoded: dict[str, Any], _: Decoder) -> type:
    return _checked(encoded, is_model_class, "data class")


ENUM: Final = Row("enum", _is_enum, _pack_enum, _unpack_enum)
DATACLASS: Final = Row("dataclass", _is_dataclass, _pack_fields, _unpack_dataclass)
ATTRS: Final = Row("attrs", _is_attrs, _pack_fields, _unpack_attrs)
NAMEDTUPLE: Final = Row("namedtuple", _is_namedtuple, _pack_namedtuple, _unpack_namedtuple)
CLASS: Final = Row("class", lambda kind: is_below(kind, type), _pack_class, _unpack_class)
SUBCLASS: Final = Row("subclass", _is_subclass, _pack_subclass, _unpack_subclass)
