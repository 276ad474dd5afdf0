"""Codecs of pandas columns, for every pandas dtype: texts and objects as lists, numbers and times as bytes.

Dtype and values of a column are separate, so that a frame can put only the values under the column's name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from spanreplay.codec._arrays import dtype_named, flat_array, from_base64, to_base64
from spanreplay.codec._engine import Decoder, Encoder, Row, find_row, package_of
from spanreplay.codec._lookup import library
from spanreplay.codec._still import check_hash, is_plain
from spanreplay.model.canonical import Refused

__all__ = [
    "ARRAY",
    "DTYPE",
    "check_labels",
    "freq_name",
    "freq_named",
    "is_numpy",
    "pack_column",
    "period_name",
    "period_named",
    "unpack_column",
    "zone_of",
]


NAME_CHARS_MAX: Final = 100
_ZONES: Final = frozenset({"timezone", "zoneinfo", "offset_zone", "pytz"})


def _pandas() -> Any:
    return library("pandas")


@lru_cache(maxsize=1)
def _families() -> dict[type, str]:
    """The dtypes of pandas itself by class; a dtype of another library is refused."""
    pandas = _pandas()
    nullable = [f"{sign}{bits}Dtype" for sign in ("Int", "UInt") for bits in (8, 16, 32, 64)]
    families = {getattr(pandas, name): "nullable" for name in (*nullable, "Float32Dtype", "Float64Dtype")}
    return {
        **families,
        pandas.BooleanDtype: "nullable",
        pandas.StringDtype: "string",
        pandas.CategoricalDtype: "category",
        pandas.DatetimeTZDtype: "datetimetz",
        pandas.PeriodDtype: "period",
        pandas.IntervalDtype: "interval",
        pandas.ArrowDtype: "arrow",
    }


def is_numpy(dtype: Any) -> bool:
    """Whether a dtype belongs to numpy, not to pandas."""
    return isinstance(dtype, sys.modules["numpy"].dtype)


def _family(dtype: Any) -> str:
    family = _families().get(type(dtype))
    if family is None:
        raise Refused(f"pandas array of dtype {dtype}")
    return family


# ── dtypes ──────────────────────────────────────────────────────────────────────────────────────────
def _pack_dtype(dtype: Any, enc: Encoder) -> Any:
    """Encode a dtype without its column's values; categories and bounds count as values.

    Raises: Refused for a dtype that is not of numpy or pandas.
    """
    if is_numpy(dtype):
        return dtype.str
    family = _family(dtype)
    packed: dict[str, Any] = {"family": family}
    if family == "nullable":
        packed["name"] = dtype.name
    elif family == "string":
        packed["storage"] = dtype.storage
        packed["is_nan"] = dtype.na_value is not _pandas().NA
    elif family == "datetimetz":
        packed["unit"] = dtype.unit
        packed["tz"] = enc.at("tz", dtype.tz)
    elif family == "period":
        packed["freq"] = period_name(dtype.freq)
    elif family == "arrow":
        packed["name"] = _arrow_name(dtype)
    return packed


def _unpack_dtype(encoded: Any, dec: Decoder) -> Any:
    """The dtype; None for categories and intervals, whose dtype is in their values."""
    pandas = _pandas()
    if type(encoded) is str:
        return dtype_named(encoded, "O")
    family = encoded["family"]
    if family == "nullable":
        return _nullable(str(encoded["name"]))
    if family == "string":
        return _string_dtype(str(encoded["storage"]), bool(encoded["is_nan"]))
    if family == "datetimetz":
        return pandas.DatetimeTZDtype(str(encoded["unit"]), zone_of(encoded["tz"], dec))
    if family == "period":
        return period_dtype(encoded["freq"])
    if family == "arrow":
        return _arrow_dtype(str(encoded["name"]))
    return None


def _nullable(name: str) -> Any:
    by_name = {cls().name: cls for cls, family in _families().items() if family == "nullable"}
    return by_name[name]()


def _string_dtype(storage: str, is_nan: bool) -> Any:
    pandas = _pandas()
    if not is_nan or storage == "pyarrow_numpy":  # pandas 2.1 and 2.2 have no other with NaN
        return pandas.StringDtype(storage)
    return pandas.StringDtype(storage, na_value=sys.modules["numpy"].nan)


def freq_name(freq: Any) -> str:
    """The name of a frequency, from which pandas reads the same frequency back.

    Raises: Refused for one with custom holidays or hours, which its name does not include.
    """
    return _telling_name(freq.freqstr, freq, freq_named)


def freq_named(name: Any) -> Any:
    """The frequency with a name from `freq_name`."""
    return library("pandas.tseries.frequencies").to_offset(_short(name))


def _short(name: Any) -> str:
    if type(name) is not str or len(name) > NAME_CHARS_MAX:
        raise Refused("a name of a dtype or a frequency that is not a short string")
    return name


def zone_of(encoded: Any, dec: Decoder) -> Any:
    """Decode a time zone of Python or a known library, never a name that pandas would interpret."""
    zone = dec.decode(encoded)
    row = find_row(type(zone))
    if row is None or row.tag not in _ZONES:
        raise Refused("something else where a time zone belongs")
    return zone


def period_name(freq: Any) -> str:
    """Like `freq_name`, for the frequencies of periods, for which pandas has other names.

    Raises: Refused for one that its name does not fully describe.
    """
    return _telling_name(_pandas().PeriodDtype(freq).name[len("period[") : -1], freq, period_named)


def period_named(name: Any) -> Any:
    """The frequency with a name from `period_name`."""
    return period_dtype(name).freq


def period_dtype(name: Any) -> Any:
    """The dtype of periods with this frequency."""
    return _pandas().PeriodDtype(_short(name))


def _telling_name(name: str, freq: Any, named: Callable[[Any], Any]) -> str:
    try:
        if named(name) == freq:
            return name
    except ValueError:
        pass
    raise Refused(f"pandas frequency {name!a}, which its name does not tell in full")


def _arrow_name(dtype: Any) -> str:
    name: str = dtype.name
    try:
        if _arrow_dtype(name) == dtype:
            return name
    except (TypeError, NotImplementedError):  # nested, decimal, dictionary
        pass
    raise Refused(f"pandas array of dtype {name}")


def _arrow_dtype(name: str) -> Any:
    arrow_dtype = _pandas().ArrowDtype
    _short(name)
    if name == "string[pyarrow]":  # construct_from_string leaves this name to StringDtype
        return arrow_dtype(library("pyarrow").string())
    return arrow_dtype.construct_from_string(name)


# ── columns ─────────────────────────────────────────────────────────────────────────────────────────
def pack_column(array: Any, enc: Encoder) -> tuple[Any, Any]:
    """Encode dtype and values of a one-dimensional numpy array or a pandas array; texts and objects become a list.

    Raises: Refused for a dtype of another library, and for one that would not come back the same.
    """
    dtype = array.dtype
    packed = _pack_dtype(dtype, enc)
    if not is_numpy(dtype):
        return packed, _PACK[packed["family"]](array, enc)
    if dtype.kind != "O":
        return packed, {"b64": to_base64(array)}
    items = array.tolist()
    if any(type(item) is float and item != item for item in items) and not any(item is None for item in items):
        # pandas 2 has NaN for missing texts
        return {"family": "nan"}, enc.sequence([None if item != item else item for item in items])
    return packed, enc.sequence(items)


def unpack_column(dtype_encoded: Any, values: Any, dec: Decoder) -> Any:
    """Rebuild the numpy or pandas array from the output of `pack_column`."""
    dtype = _unpack_dtype(dtype_encoded, dec)
    if type(dtype_encoded) is not str:
        return _UNPACK[dtype_encoded["family"]](dtype, values, dec)
    if dtype.kind != "O":
        return flat_array(dtype, values["b64"]).copy()
    return _object_array(dec.sequence(values))


def _object_array(items: list[Any]) -> Any:
    array = sys.modules["numpy"].empty(len(items), dtype=object)
    for at, item in enumerate(items):
        array[at] = item
    return array


def _unpack_nan(_dtype: Any, values: Any, dec: Decoder) -> Any:
    nan = library("numpy").nan
    return _object_array([nan if item is None else item for item in dec.sequence(values)])


def _pack_string(array: Any, enc: Encoder) -> list[Any]:
    items = array.to_numpy(dtype=object).tolist()
    return enc.sequence([None if gone else item for item, gone in zip(items, array.isna().tolist(), strict=True)])


def _unpack_string(dtype: Any, values: Any, dec: Decoder) -> Any:
    return _pandas().array(_plain_items(values, dec), dtype=dtype)


def _plain_items(values: Any, dec: Decoder) -> list[Any]:
    """Decode items of plain types only: libraries would call methods of any other class."""
    items = dec.sequence(values)
    if not is_plain(items):
        raise Refused("something else where plain values belong")
    return items


def _pack_nullable(array: Any, _: Encoder) -> dict[str, Any]:
    missing = array.isna()
    packed = {"b64": to_base64(array.to_numpy(dtype=array.dtype.numpy_dtype, na_value=0))}
    return {**packed, "missing": to_base64(missing)} if missing.any() else packed


def _unpack_nullable(dtype: Any, values: Any, _: Decoder) -> Any:
    numbers = flat_array(dtype.numpy_dtype, values["b64"]).copy()
    is_missing = dtype_named("?")
    if "missing" in values:
        missing = flat_array(is_missing, values["missing"]).copy()
    else:
        missing = sys.modules["numpy"].zeros(len(numbers), dtype=is_missing)
    return dtype.construct_array_type()(numbers, missing)


def _pack_ticks(array: Any, _: Encoder) -> dict[str, Any]:
    return {"b64": to_base64(array.asi8)}


def _unpack_datetimetz(dtype: Any, values: Any, _: Decoder) -> Any:
    moments = flat_array(dtype_named(f"M8[{dtype.unit}]"), values["b64"]).copy()
    return _pandas().DatetimeIndex(moments).tz_localize("UTC").tz_convert(dtype.tz).array


def _unpack_period(dtype: Any, values: Any, _: Decoder) -> Any:
    return _pandas().arrays.PeriodArray(flat_array(dtype_named("i8"), values["b64"]).copy(), dtype=dtype)


def _pack_category(array: Any, enc: Encoder) -> dict[str, Any]:
    codes = array.codes
    return {"b64": to_base64(codes), "codes": codes.dtype.str, **_pack_categories(array.dtype, enc)}


def _pack_categories(dtype: Any, enc: Encoder) -> dict[str, Any]:
    return {"categories": enc.at("categories", dtype.categories), "ordered": dtype.ordered}


def _unpack_category(_dtype: Any, values: Any, dec: Decoder) -> Any:
    raw = from_base64(values["b64"])
    codes = sys.modules["numpy"].frombuffer(raw, dtype=dtype_named(values["codes"])).copy()
    return _pandas().Categorical.from_codes(codes, dtype=_unpack_categories(values, dec))


def _unpack_categories(values: Any, dec: Decoder) -> Any:
    categories = dec.decode(values["categories"])
    if categories is not None:
        check_labels(categories)
    return _pandas().CategoricalDtype(categories, bool(values["ordered"]) if values["ordered"] is not None else None)


def _tag_of(value: Any) -> str:
    row = find_row(type(value))
    return "" if row is None else row.tag


def check_labels(index: Any) -> None:
    """Raises: Refused unless this is an index, and hashing its labels runs no code of their classes."""
    if _tag_of(index) != "pdindex":
        raise Refused("something else where an index belongs")
    if index.dtype.kind == "O":
        for label in index.to_numpy(dtype=object).tolist():
            check_hash(label)


def _pack_interval(array: Any, enc: Encoder) -> dict[str, Any]:
    return {"left": enc.at("left", array.left), "right": enc.at("right", array.right), "closed": array.closed}


def _unpack_interval(_dtype: Any, values: Any, dec: Decoder) -> Any:
    bounds = dec.decode(values["left"]), dec.decode(values["right"])
    if any(_tag_of(each) not in ("pdindex", "pdarray", "ndarray") or each.dtype.kind == "O" for each in bounds):
        raise Refused("something else where bounds belong")
    return _pandas().arrays.IntervalArray.from_arrays(*bounds, closed=str(values["closed"]))


def _pack_arrow(array: Any, enc: Encoder) -> list[Any]:
    items = array.__arrow_array__().to_pylist()
    packed = enc.sequence(items)
    if enc.sequence(_arrow_array(items, array.dtype).__arrow_array__().to_pylist()) != packed:
        raise Refused(f"pandas array of dtype {array.dtype} with values that Python has no type for")
    return packed


def _unpack_arrow(dtype: Any, values: Any, dec: Decoder) -> Any:
    return _arrow_array(_plain_items(values, dec), dtype)


def _arrow_array(items: list[Any], dtype: Any) -> Any:
    made = library("pyarrow").array(items, type=dtype.pyarrow_dtype, from_pandas=False)
    return _pandas().arrays.ArrowExtensionArray(made)


_PACK: Final[dict[str, Callable[[Any, Encoder], Any]]] = {
    "nullable": _pack_nullable,
    "string": _pack_string,
    "datetimetz": _pack_ticks,
    "period": _pack_ticks,
    "category": _pack_category,
    "interval": _pack_interval,
    "arrow": _pack_arrow,
}
_UNPACK: Final[dict[str, Callable[[Any, Any, Decoder], Any]]] = {
    "nan": _unpack_nan,
    "nullable": _unpack_nullable,
    "string": _unpack_string,
    "datetimetz": _unpack_datetimetz,
    "period": _unpack_period,
    "category": _unpack_category,
    "interval": _unpack_interval,
    "arrow": _unpack_arrow,
}


# ── arrays and dtypes by themselves ─────────────────────────────────────────────────────────────────
def _is_below(name: str) -> Callable[[type], bool]:
    def matches(kind: type) -> bool:
        if package_of(kind) != "pandas":
            return False
        base = getattr(sys.modules.get("pandas.api.extensions"), name, None)
        return isinstance(base, type) and issubclass(kind, base)

    return matches


def _pack_array(value: Any, enc: Encoder) -> dict[str, Any]:
    dtype, values = pack_column(value.to_numpy() if is_numpy(value.dtype) else value, enc)
    freq = getattr(value, "freq", None) if value.dtype.kind in "mM" else None  # for periods, part of the dtype
    packed = {"dtype": dtype, "values": values}
    return packed if freq is None else {**packed, "freq": freq_name(freq)}


def _unpack_array(encoded: dict[str, Any], dec: Decoder) -> Any:
    pandas = _pandas()
    array = pandas.array(unpack_column(encoded["dtype"], encoded["values"], dec))
    if "freq" not in encoded:
        return array
    index = pandas.TimedeltaIndex if array.dtype.kind == "m" else pandas.DatetimeIndex
    return index(array, freq=freq_named(encoded["freq"])).array


def _pack_lone_dtype(value: Any, enc: Encoder) -> dict[str, Any]:
    packed = {"dtype": _pack_dtype(value, enc)}
    family = _family(value)
    if family == "category":
        packed.update(_pack_categories(value, enc))
    elif family == "interval":
        packed.update(subtype=enc.at("subtype", value.subtype), closed=value.closed)
    return packed


def _unpack_lone_dtype(encoded: dict[str, Any], dec: Decoder) -> Any:
    dtype = _unpack_dtype(encoded["dtype"], dec)
    if dtype is not None:
        return dtype
    if "categories" in encoded:
        return _unpack_categories(encoded, dec)
    subtype = dec.decode(encoded["subtype"])
    if subtype is not None and _tag_of(subtype) not in ("npdtype", "pddtype"):
        raise Refused("something else where a dtype belongs")
    return _pandas().IntervalDtype(subtype, encoded["closed"])


ARRAY: Final = Row("pdarray", _is_below("ExtensionArray"), _pack_array, _unpack_array)
DTYPE: Final = Row("pddtype", _is_below("ExtensionDtype"), _pack_lone_dtype, _unpack_lone_dtype)
