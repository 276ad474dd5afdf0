"""Codecs of polars' frames and series, column by column; polars is used only if it is loaded or recorded.

Times are written as counts of their unit, other values as Python values. A column keeps its chunks, because the last
digits of sums depend on them. Lazy frames, objects, and categories whose numbers depend on the process are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final

from spanreplay.codec._engine import Decoder, Encoder, Row, package_of
from spanreplay.codec._lookup import library
from spanreplay.codec._named import label_text, pack_named, unpack_named
from spanreplay.codec._still import is_plain
from spanreplay.model.canonical import Refused

__all__ = ["FRAME", "SERIES"]

_PLAIN: Final = frozenset(
    {f"{sign}{bits}" for sign in ("Int", "UInt") for bits in (8, 16, 32, 64, 128)}
    | {"Float32", "Float64", "Boolean", "String", "Binary", "Null"}
)
_OF_UNITS: Final = {"Datetime": ("time_unit", "time_zone"), "Duration": ("time_unit",), "Date": (), "Time": ()}


def _is(name: str) -> Callable[[type], bool]:
    return lambda kind: package_of(kind) == "polars" and kind is getattr(sys.modules.get("polars"), name, None)


def _pack_dtype(dtype: Any) -> Any:
    name = type(dtype).__name__
    if name in _PLAIN:
        return name
    if name in _OF_UNITS:
        return [name, *(getattr(dtype, each) for each in _OF_UNITS[name])]
    if name == "Decimal":
        return [name, dtype.precision, dtype.scale]
    if name == "List":
        return [name, _pack_nested(dtype.inner)]
    if name == "Struct":
        return [name, [[field.name, _pack_nested(field.dtype)] for field in dtype.fields]]
    raise Refused(f"polars column of dtype {dtype}")


def _pack_nested(dtype: Any) -> Any:
    if type(dtype).__name__ in _OF_UNITS:
        raise Refused(f"polars column of lists or structs with {dtype}")  # Python's types lose nanoseconds
    return _pack_dtype(dtype)


def _unpack_dtype(packed: Any, polars: Any) -> Any:
    name, options = (packed, []) if type(packed) is str else (packed[0], packed[1:])
    if name in _PLAIN or name in _OF_UNITS or name == "Decimal":
        return getattr(polars, name)(*options)
    if name == "List":
        return polars.List(_unpack_dtype(options[0], polars))
    if name == "Struct":
        return polars.Struct([polars.Field(str(of), _unpack_dtype(each, polars)) for of, each in options[0]])
    raise Refused("a polars dtype of a newer spanreplay")


def _pack_series(series: Any, enc: Encoder) -> dict[str, Any]:
    try:
        packed = {"name": enc.encode(series.name), "dtype": _pack_dtype(series.dtype)}
        values = series.to_physical() if type(series.dtype).__name__ in _OF_UNITS else series
        packed["values"] = pack_named(label_text(series.name), enc.sequence(values.to_list()), [])
    except Refused as refused:
        refused.steps.append(label_text(series.name) or "values")
        raise
    chunks = series.chunk_lengths()
    return packed if len(chunks) == 1 else {**packed, "chunks": chunks}


def _unpack_series(encoded: dict[str, Any], dec: Decoder) -> Any:
    polars = library("polars")
    dtype = _unpack_dtype(encoded["dtype"], polars)
    name, values = dec.decode(encoded["name"]), dec.sequence(unpack_named(encoded["values"]))
    if type(name) is not str or not is_plain(values):
        raise Refused("something else where plain values belong")
    if type(dtype).__name__ in _OF_UNITS:
        physical = polars.Series(name, [], dtype=dtype).to_physical().dtype
        series = polars.Series(name, values, dtype=physical).cast(dtype)
    else:
        series = polars.Series(name, values, dtype=dtype)
    if "chunks" not in encoded:
        return series
    chunks = encoded["chunks"]
    if type(chunks) is not list or any(type(each) is not int or each < 0 for each in chunks):
        raise Refused("something else where lengths of chunks belong")
    ends = list(accumulate(chunks))
    if ends[-1] != len(series):
        raise Refused("a polars column whose chunks are of another length")
    parts = [series.slice(end - length, length) for end, length in zip(ends, chunks, strict=True)]
    return polars.concat(parts, rechunk=False)


def _pack_frame(frame: Any, enc: Encoder) -> dict[str, Any]:
    if not frame.width and frame.height:
        raise Refused("polars frame of rows without columns")
    return {"columns": [enc.encode(column) for column in frame.get_columns()]}


def _unpack_frame(encoded: dict[str, Any], dec: Decoder) -> Any:
    polars, columns = library("polars"), dec.sequence(encoded["columns"])
    if any(type(each) is not polars.Series for each in columns):
        raise Refused("something else where a column belongs")
    return polars.DataFrame(columns)


FRAME: Final = Row("plframe", _is("DataFrame"), _pack_frame, _unpack_frame)
SERIES: Final = Row("plseries", _is("Series"), _pack_series, _unpack_series)
