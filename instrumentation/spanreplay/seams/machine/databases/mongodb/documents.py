"""BSON documents as JSON values, and back, byte for byte.

Texts, booleans, 32-bit numbers, doubles, lists and documents are themselves; all other types are written as MongoDB's
Extended JSON writes them (`{"$oid": …}`).
"""

from __future__ import annotations

import math
from typing import Any, Final

_TAGS: Final = frozenset(
    {"$binary", "$code", "$date", "$maxKey", "$minKey", "$numberDecimal", "$numberDouble", "$numberLong", "$oid",
     "$regularExpression", "$scope", "$symbol", "$timestamp", "$undefined", "$uuid", "$dbPointer"}
)  # fmt: skip
_PAIRS: Final = "$document"
"""A document whose first name is one of ours: as a list of pairs."""
_DEPTH_MAX: Final = 200


class Undecodable:
    """A document that does not survive the way to JSON and back; it has no codec, so the run is incomplete."""

    __slots__ = ()


def _options() -> Any:
    from bson.codec_options import CodecOptions, DatetimeConversion

    return CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS, tz_aware=False)


def decode(raw: bytes) -> dict[str, Any]:
    """Return the JSON value of one BSON document. Raises: ValueError and bson's errors."""
    import bson

    found: dict[str, Any] = _show_document(bson.decode(raw, _options()), 0)
    return found


def encode(shown: dict[str, Any]) -> bytes:
    """Return the BSON document of a JSON value."""
    import bson

    raw: bytes = bson.encode(_read_document(shown), codec_options=_options())
    return raw


def decode_exactly(raw: bytes) -> dict[str, Any] | Undecodable:
    """As `decode`; `Undecodable` if `encode` would make another document of it."""
    try:
        shown = decode(raw)
        return shown if encode(shown) == raw else Undecodable()
    except Exception:  # noqa: BLE001 -- whatever bson objects to: the program itself may never look there
        return Undecodable()


def _show_document(document: Any, depth: int) -> Any:
    if depth > _DEPTH_MAX:
        raise ValueError("the document is nested too deeply")
    shown = {name: _show(value, depth + 1) for name, value in document.items()}
    first = next(iter(shown), "")
    if first in _TAGS or first == _PAIRS:
        return {_PAIRS: [[name, value] for name, value in shown.items()]}
    return shown


def _show(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$numberDouble": _name(value)}
    if kind is dict:
        return _show_document(value, depth)
    if kind is list:
        return [_show(each, depth + 1) for each in value]
    return _show_special(value, depth)


def _name(value: float) -> str:
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _show_special(value: Any, depth: int) -> Any:
    from bson import json_util
    from bson.code import Code
    from bson.dbref import DBRef
    from bson.int64 import Int64

    if isinstance(value, Int64):
        return {"$numberLong": str(int(value))}
    if isinstance(value, DBRef):
        return _show_document(value.as_doc(), depth)
    if isinstance(value, Code):
        scope = {} if value.scope is None else {"$scope": _show_document(value.scope, depth)}
        return {"$code": str(value), **scope}
    if hasattr(value, "items"):
        return _show_document(value, depth)
    return json_util.default(value, json_util.CANONICAL_JSON_OPTIONS)


def _read_document(shown: dict[str, Any]) -> dict[str, Any]:
    pairs = shown[_PAIRS] if len(shown) == 1 and _PAIRS in shown else shown.items()
    return {name: _read(value) for name, value in pairs}


def _read(shown: Any) -> Any:
    if type(shown) is list:
        return [_read(each) for each in shown]
    if type(shown) is not dict:
        return shown
    first = next(iter(shown), "")
    return _read_special(first, shown) if first in _TAGS else _read_document(shown)


def _read_special(tag: str, shown: dict[str, Any]) -> Any:
    from bson import json_util
    from bson.code import Code
    from bson.datetime_ms import DatetimeMS
    from bson.int64 import Int64

    value = shown[tag]
    if tag == "$numberLong":
        return Int64(value)
    if tag == "$date":
        return DatetimeMS(int(value["$numberLong"]))
    if tag == "$code":
        return Code(value, _read_document(shown["$scope"]) if "$scope" in shown else None)
    return json_util.object_hook(shown, json_util.CANONICAL_JSON_OPTIONS)
