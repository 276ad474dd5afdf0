"""Codecs of the standard library's values."""

from __future__ import annotations

import base64
import datetime as dt
import fractions
import re
import uuid
import zoneinfo
from collections import defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, Final

from spanreplay.codec._engine import Decoder, Encoder, Row
from spanreplay.codec._lookup import class_path, load_class
from spanreplay.codec._still import check_hash, find, is_below
from spanreplay.model.canonical import Refused, canonicalize

__all__ = ["BUILTIN_ROWS"]


def _is(*kinds: type) -> Callable[[type], bool]:
    return lambda kind: kind in kinds


# ── text, bytes, numbers ────────────────────────────────────────────────────────────────────────────
def _pack_text(value: str, _: Encoder) -> dict[str, Any]:
    return {"b64": _to_b64(value.encode("utf-8", "surrogatepass"))}


def _unpack_text(encoded: dict[str, Any], _: Decoder) -> str:
    return _from_b64(encoded["b64"]).decode("utf-8", "surrogatepass")


def _pack_bytes(value: bytes | bytearray, _: Encoder) -> dict[str, Any]:
    # As text if it is valid UTF-8, so that redaction can read it.
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return {"b64": _to_b64(bytes(value))}
    return {"text": text}


def _unpack_bytes(encoded: dict[str, Any], _: Decoder) -> bytes:
    text = encoded.get("text")
    return text.encode() if isinstance(text, str) else _from_b64(encoded["b64"])


def _pack_view(value: memoryview, enc: Encoder) -> dict[str, Any]:
    return {**_pack_bytes(value.tobytes(), enc), "format": value.format, "shape": list(value.shape or ())}


def _unpack_view(encoded: dict[str, Any], dec: Decoder) -> memoryview:
    flat = memoryview(_unpack_bytes(encoded, dec))
    if encoded["format"] == "B" and len(encoded["shape"]) == 1:
        return flat
    return flat.cast(encoded["format"], [int(size) for size in encoded["shape"]])


def _text(value: Any) -> str:
    """Return `value` if it is exactly a str: constructors would call methods of any other class."""
    if type(value) is not str:
        raise Refused("something else where text belongs")
    return value


def _ints(values: Any) -> list[int]:
    if not all(type(each) is int for each in values):
        raise Refused("something else where a whole number belongs")
    return list(values)


def _to_b64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _from_b64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _pack_float(value: float, _: Encoder) -> dict[str, Any]:
    return {"value": float.__repr__(value)}


def _unpack_float(encoded: dict[str, Any], _: Decoder) -> float:
    return {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}[encoded["value"]]


def _pack_int(value: int, _: Encoder) -> dict[str, Any]:
    return {"hex": hex(value)}


def _pack_complex(value: complex, _: Encoder) -> dict[str, Any]:
    return {"real": float.__repr__(value.real), "imag": float.__repr__(value.imag)}


def _pack_decimal(value: Decimal, _: Encoder) -> dict[str, Any]:
    return {"value": str(value)}


FRACTION_BITS_MAX: Final = 65_536
"""Computing the greatest common divisor takes time quadratic in this."""


def _pack_fraction(value: fractions.Fraction, enc: Encoder) -> dict[str, Any]:
    return {"numerator": enc.encode(value.numerator), "denominator": enc.encode(value.denominator)}


def _unpack_fraction(encoded: dict[str, Any], dec: Decoder) -> fractions.Fraction:
    parts = _ints([dec.decode(encoded["numerator"]), dec.decode(encoded["denominator"])])
    if max(part.bit_length() for part in parts) > FRACTION_BITS_MAX:
        raise Refused(f"a fraction of more than {FRACTION_BITS_MAX} bits")
    return fractions.Fraction(*parts)


# ── containers ──────────────────────────────────────────────────────────────────────────────────────
def _pack_dict(value: dict[Any, Any], enc: Encoder) -> dict[str, Any]:
    return {"items": enc.pairs(list(value.items()))}


def _unpack_dict(encoded: dict[str, Any], dec: Decoder) -> dict[Any, Any]:
    return dict(_keyed(encoded, dec))


def _keyed(encoded: dict[str, Any], dec: Decoder) -> list[tuple[Any, Any]]:
    pairs = dec.pairs(encoded["items"])
    for key, _ in pairs:
        check_hash(key)
    return pairs


def _members_of_set(encoded: dict[str, Any], dec: Decoder) -> list[Any]:
    items = dec.sequence(encoded["items"])
    for item in items:
        check_hash(item)
    return items


def _pack_items(value: Any, enc: Encoder) -> dict[str, Any]:
    return {"items": enc.sequence(list(value))}


def _pack_set(value: set[Any] | frozenset[Any], enc: Encoder) -> dict[str, Any]:
    encoded = []
    for item in value:
        encoded.append(enc.at("items", item))
    return {"items": sorted(encoded, key=canonicalize)}


_FACTORIES: Final = {f.__name__: f for f in (list, dict, set, int, float, str, bool, tuple, bytes)}


def _pack_defaultdict(value: defaultdict[Any, Any], enc: Encoder) -> dict[str, Any]:
    factory = value.default_factory
    if factory is not None and factory not in _FACTORIES.values():
        raise Refused("collections.defaultdict with a factory that is not a builtin type")
    name = None if factory is None else getattr(factory, "__name__", "")
    return {"factory": name, "items": enc.pairs(list(value.items()))}


def _unpack_defaultdict(encoded: dict[str, Any], dec: Decoder) -> defaultdict[Any, Any]:
    name = encoded["factory"]
    factory: Any = None if name is None else _FACTORIES[name]
    return defaultdict(factory, _keyed(encoded, dec))


def _pack_deque(value: deque[Any], enc: Encoder) -> dict[str, Any]:
    return {"maxlen": value.maxlen, "items": enc.sequence(list(value))}


def _unpack_deque(encoded: dict[str, Any], dec: Decoder) -> deque[Any]:
    maxlen = encoded["maxlen"]
    return deque(dec.sequence(encoded["items"]), maxlen if type(maxlen) is int else None)


def _pack_slice(value: Any, enc: Encoder) -> dict[str, Any]:
    return {"of": enc.sequence((value.start, value.stop, value.step))}


# ── time ────────────────────────────────────────────────────────────────────────────────────────────
def _pack_moment(value: dt.datetime | dt.time, enc: Encoder) -> dict[str, Any]:
    packed: dict[str, Any] = {"value": value.replace(tzinfo=None).isoformat()}
    if value.tzinfo is not None:
        packed["tz"] = enc.at("tzinfo", value.tzinfo)
    if value.fold:
        packed["fold"] = 1
    return packed


def _zone_of(encoded: dict[str, Any], dec: Decoder) -> dt.tzinfo | None:
    zone: dt.tzinfo | None = dec.decode(encoded.get("tz"))
    if zone is not None and not is_below(type(zone), dt.tzinfo):
        raise Refused("something else where a time zone belongs")
    return zone


def _unpack_datetime(encoded: dict[str, Any], dec: Decoder) -> dt.datetime:
    naive = dt.datetime.fromisoformat(encoded["value"])
    return naive.replace(tzinfo=_zone_of(encoded, dec), fold=1 if encoded.get("fold") else 0)


def _unpack_time(encoded: dict[str, Any], dec: Decoder) -> dt.time:
    naive = dt.time.fromisoformat(encoded["value"])
    return naive.replace(tzinfo=_zone_of(encoded, dec), fold=1 if encoded.get("fold") else 0)


def _pack_timedelta(value: dt.timedelta, _: Encoder) -> dict[str, Any]:
    return {"days": value.days, "seconds": value.seconds, "microseconds": value.microseconds}


def _unpack_timedelta(encoded: dict[str, Any], _: Decoder) -> dt.timedelta:
    parts = {name: int(encoded[name]) for name in ("days", "seconds", "microseconds")}
    return dt.timedelta(**parts)


def _pack_timezone(value: dt.timezone, _: Encoder) -> dict[str, Any]:
    if value is dt.timezone.utc:
        return {"name": "UTC"}
    offset = value.utcoffset(None)
    packed: dict[str, Any] = {"seconds": offset.total_seconds()}
    name = value.tzname(None)
    if name != dt.timezone(offset).tzname(None):
        packed["name"] = name
    return packed


def _unpack_timezone(encoded: dict[str, Any], _: Decoder) -> dt.timezone:
    if "seconds" not in encoded:
        return dt.timezone.utc
    offset = dt.timedelta(seconds=encoded["seconds"])
    return dt.timezone(offset, encoded["name"]) if "name" in encoded else dt.timezone(offset)


def _pack_zoneinfo(value: zoneinfo.ZoneInfo, _: Encoder) -> dict[str, Any]:
    if not value.key:
        raise Refused("zoneinfo.ZoneInfo without a key")
    return {"key": value.key}


def _is_zoneinfo_subclass(kind: type) -> bool:
    """Whether it is a subclass of `ZoneInfo` that makes its instances in the same way (tortoise-orm's)."""
    makers = ("__new__", "__init__")
    return is_below(kind, zoneinfo.ZoneInfo) and all(find(kind, m) is find(zoneinfo.ZoneInfo, m) for m in makers)


def _pack_zoneinfo_subclass(value: zoneinfo.ZoneInfo, enc: Encoder) -> dict[str, Any]:
    return {"class": class_path(type(value)), **_pack_zoneinfo(value, enc)}


def _unpack_zoneinfo_subclass(encoded: dict[str, Any], _: Decoder) -> zoneinfo.ZoneInfo:
    kind: Any = load_class(encoded["class"])
    if not _is_zoneinfo_subclass(kind):
        raise Refused(f"{encoded['class']}, which is not a time zone")
    zone: zoneinfo.ZoneInfo = zoneinfo.ZoneInfo.__new__(kind, _text(encoded["key"]))
    return zone


# Fixed-offset zones of other libraries; pydantic gives one to every datetime that it parses.
_OFFSET_ZONES: Final = frozenset({"pydantic_core._pydantic_core:TzInfo", "dateutil.tz.tz:tzutc"})


def _is_offset_zone(kind: type) -> bool:
    return f"{kind.__module__}:{kind.__qualname__}" in _OFFSET_ZONES


def _pack_offset_zone(value: dt.tzinfo, _: Encoder) -> dict[str, Any]:
    offset = value.utcoffset(None)
    return {"class": class_path(type(value)), "seconds": int(offset.total_seconds()) if offset else 0}


def _unpack_offset_zone(encoded: dict[str, Any], _: Decoder) -> dt.tzinfo:
    if encoded["class"] not in _OFFSET_ZONES:
        raise Refused("a time zone of an unknown class")
    cls = load_class(encoded["class"])
    zone: dt.tzinfo = cls(int(encoded["seconds"])) if encoded["class"].endswith("TzInfo") else cls()
    return zone


# ── the rest ────────────────────────────────────────────────────────────────────────────────────────
_PATHS: Final[dict[str, type[PurePath]]] = {
    "Path": Path,
    "PurePosixPath": PurePosixPath,
    "PureWindowsPath": PureWindowsPath,
}


def _pack_path(value: PurePath, enc: Encoder) -> dict[str, Any]:
    name = "Path" if isinstance(value, Path) else type(value).__name__
    return {"class": name, "value": enc.encode(str(value))}


def _unpack_path(encoded: dict[str, Any], dec: Decoder) -> PurePath:
    return _PATHS[encoded["class"]](_text(dec.decode(encoded["value"])))


def _pack_pattern(value: re.Pattern[Any], enc: Encoder) -> dict[str, Any]:
    return {"pattern": enc.encode(value.pattern), "flags": value.flags}


def _unpack_pattern(encoded: dict[str, Any], dec: Decoder) -> re.Pattern[Any]:
    pattern = dec.decode(encoded["pattern"])
    if type(pattern) not in (str, bytes):
        raise Refused("something else where a pattern belongs")
    flags = int(encoded["flags"]) & ~re.DEBUG  # DEBUG would print
    return re.compile(pattern, flags & ~re.UNICODE if isinstance(pattern, bytes) else flags)


def _pack_nothing(_value: Any, _: Encoder) -> dict[str, Any]:
    return {}


def _pack_str(value: Any, _: Encoder) -> dict[str, Any]:
    return {"value": str(value)}


def _pack_iso(value: dt.date, _: Encoder) -> dict[str, Any]:
    return {"value": value.isoformat()}


BUILTIN_ROWS: Final = (
    Row("str", _is(str), _pack_text, _unpack_text),
    Row("int", _is(int), _pack_int, lambda e, _: int(e["hex"], 16)),
    Row("float", _is(float), _pack_float, _unpack_float),
    Row("dict", _is(dict), _pack_dict, _unpack_dict),
    Row("tuple", _is(tuple), _pack_items, lambda e, d: tuple(d.sequence(e["items"]))),
    Row("set", _is(set), _pack_set, lambda e, d: set(_members_of_set(e, d))),
    Row("frozenset", _is(frozenset), _pack_set, lambda e, d: frozenset(_members_of_set(e, d))),
    Row("bytes", _is(bytes), _pack_bytes, _unpack_bytes),
    Row("bytearray", _is(bytearray), _pack_bytes, lambda e, d: bytearray(_unpack_bytes(e, d))),
    Row("memoryview", _is(memoryview), _pack_view, _unpack_view),
    Row("datetime", _is(dt.datetime), _pack_moment, _unpack_datetime),
    Row("date", _is(dt.date), _pack_iso, lambda e, _: dt.date.fromisoformat(e["value"])),
    Row("time", _is(dt.time), _pack_moment, _unpack_time),
    Row("timedelta", _is(dt.timedelta), _pack_timedelta, _unpack_timedelta),
    Row("timezone", _is(dt.timezone), _pack_timezone, _unpack_timezone),
    Row("zoneinfo", _is(zoneinfo.ZoneInfo), _pack_zoneinfo, lambda e, _: zoneinfo.ZoneInfo(e["key"])),
    Row("zoneinfo_subclass", _is_zoneinfo_subclass, _pack_zoneinfo_subclass, _unpack_zoneinfo_subclass),
    Row("offset_zone", _is_offset_zone, _pack_offset_zone, _unpack_offset_zone),
    Row("decimal", _is(Decimal), _pack_decimal, lambda e, _: Decimal(_text(e["value"]))),
    Row("fraction", _is(fractions.Fraction), _pack_fraction, _unpack_fraction),
    Row("complex", _is(complex), _pack_complex, lambda e, _: complex(float(e["real"]), float(e["imag"]))),
    Row("uuid", _is(uuid.UUID), _pack_str, lambda e, _: uuid.UUID(e["value"])),
    Row("path", _is(PosixPath, WindowsPath, *_PATHS.values()), _pack_path, _unpack_path),
    Row("defaultdict", _is(defaultdict), _pack_defaultdict, _unpack_defaultdict),
    Row("deque", _is(deque), _pack_deque, _unpack_deque),
    Row("range", _is(range), _pack_slice, lambda e, d: range(*_ints(d.sequence(e["of"])))),
    Row("slice", _is(slice), _pack_slice, lambda e, d: slice(*d.sequence(e["of"]))),
    Row("pattern", _is(re.Pattern), _pack_pattern, _unpack_pattern),
    Row("ellipsis", _is(type(...)), _pack_nothing, lambda _e, _d: ...),
)
