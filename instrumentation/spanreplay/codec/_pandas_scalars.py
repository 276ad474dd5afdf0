"""Codecs of pandas' own scalars: timestamps, time spans and missing values."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from spanreplay.codec._engine import Decoder, Encoder, Row, find_row, package_of
from spanreplay.codec._lookup import library
from spanreplay.codec._pandas_arrays import period_name, period_named, zone_of
from spanreplay.codec._still import is_plain
from spanreplay.model.canonical import Refused

__all__ = ["ROWS", "is_pandas"]


def is_pandas(*names: str) -> Callable[[type], bool]:
    """Return a test for exactly these pandas types, or the types of these pandas values; subclasses don't match."""

    def matches(kind: type) -> bool:
        if package_of(kind) != "pandas":
            return False
        found = (getattr(sys.modules.get("pandas"), name, None) for name in names)
        return any(kind is each or (not isinstance(each, type) and kind is type(each)) for each in found)

    return matches


def _pandas() -> Any:
    return library("pandas")


def _pack_timestamp(value: Any, enc: Encoder) -> dict[str, Any]:
    packed: dict[str, Any] = {"value": str(value.asm8), "unit": value.unit}  # in UTC if it has a zone
    if value.tzinfo is not None:
        packed["tz"] = enc.at("tz", value.tzinfo)
    elif value.fold:
        packed["fold"] = 1
    return packed


def _unpack_timestamp(encoded: dict[str, Any], dec: Decoder) -> Any:
    numpy = library("numpy")
    moment = _pandas().Timestamp(numpy.datetime64(str(encoded["value"]), str(encoded["unit"])))
    if "tz" in encoded:
        return moment.tz_localize("UTC").tz_convert(zone_of(encoded["tz"], dec))
    return moment.replace(fold=1) if encoded.get("fold") else moment


def _pack_timedelta(value: Any, _: Encoder) -> dict[str, Any]:
    return {"value": int(value.asm8.view("i8")), "unit": value.unit}


def _unpack_timedelta(encoded: dict[str, Any], _: Decoder) -> Any:
    numpy = library("numpy")
    return _pandas().Timedelta(numpy.timedelta64(int(encoded["value"]), str(encoded["unit"])))


def _pack_period(value: Any, _: Encoder) -> dict[str, Any]:
    return {"ordinal": int(value.ordinal), "freq": period_name(value.freq)}


def _unpack_period(encoded: dict[str, Any], _: Decoder) -> Any:
    return _pandas().Period(ordinal=int(encoded["ordinal"]), freq=period_named(encoded["freq"]))


def _pack_interval(value: Any, enc: Encoder) -> dict[str, Any]:
    return {"left": enc.at("left", value.left), "right": enc.at("right", value.right), "closed": value.closed}


def _unpack_interval(encoded: dict[str, Any], dec: Decoder) -> Any:
    bounds = dec.decode(encoded["left"]), dec.decode(encoded["right"])
    if not all(
        is_plain(each) or is_pandas("Timestamp", "Timedelta")(type(each)) or _is_number(each) for each in bounds
    ):
        raise Refused("something else where bounds belong")
    return _pandas().Interval(*bounds, str(encoded["closed"]))


def _is_number(value: Any) -> bool:
    row = find_row(type(value))
    return row is not None and row.tag == "npscalar"


def _pack_nothing(_value: Any, _: Encoder) -> dict[str, Any]:
    return {}


ROWS: Final = (
    Row("timestamp", is_pandas("Timestamp"), _pack_timestamp, _unpack_timestamp),
    Row("pdtimedelta", is_pandas("Timedelta"), _pack_timedelta, _unpack_timedelta),
    Row("period", is_pandas("Period"), _pack_period, _unpack_period),
    Row("interval", is_pandas("Interval"), _pack_interval, _unpack_interval),
    Row("nat", is_pandas("NaT"), _pack_nothing, lambda _e, _d: _pandas().NaT),
    Row("na", is_pandas("NA"), _pack_nothing, lambda _e, _d: _pandas().NA),
)
