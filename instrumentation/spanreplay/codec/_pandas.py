"""Codecs of pandas' frames, series and indexes; pandas is used only if it is loaded or a recording names it.

The values of a column are stored under its name, as in a list of rows, so that redaction by name sees them; a frame's
`columns` and index hold everything else about the labels. Subclasses (geopandas) are refused, because pandas does not
know their additional state.
"""

from __future__ import annotations

from typing import Any, Final

from spanreplay.codec._engine import Decoder, Encoder, Row
from spanreplay.codec._lookup import library
from spanreplay.codec._named import label_text, pack_named, says_secret, unpack_named
from spanreplay.codec._pandas_arrays import check_labels, freq_name, freq_named, is_numpy, pack_column, unpack_column
from spanreplay.codec._pandas_scalars import is_pandas
from spanreplay.codec._still import check_hash
from spanreplay.model.canonical import Refused

__all__ = ["FRAME", "INDEX", "SERIES"]

ROW_NAMES_MAX: Final = 1_000
"""A table with more rows is not taken for a record of settings."""
INSERTED_MAX: Final = 64
"""Columns inserted one by one; pandas warns about a frame of more than 100 blocks."""


def _pandas() -> Any:
    return library("pandas")


# ── values under their names ──────────────────────────────────────────────────────────────────────────────
def _row_names(index: Any) -> list[str]:
    """The row labels if one of them marks its row as a secret, as in a record of settings; otherwise []."""
    if len(index) > ROW_NAMES_MAX or type(index).__name__ != "Index":
        return []
    names = [label_text(label) for label in index.tolist()]
    return names if any(says_secret(name) for name in names) else []


def _pack_values(series: Any, enc: Encoder, row_names: list[str]) -> tuple[Any, dict[str, Any]]:
    """The dtype, and the values under their name, of a series, a column or an index."""
    name = label_text(series.name)
    try:
        dtype, values = pack_column(series.to_numpy() if is_numpy(series.dtype) else series.array, enc)
    except Refused as refused:
        if name:
            refused.steps.append(name)
        raise
    return dtype, pack_named(name, values, row_names)


def _unpack_values(dtype: Any, named: Any, dec: Decoder) -> Any:
    return unpack_column(dtype, unpack_named(named), dec)


def _pack_notes(value: Any, enc: Encoder) -> dict[str, Any]:
    notes: dict[str, Any] = {}
    if value.attrs:
        notes["attrs"] = enc.at("attrs", dict(value.attrs))
    if not value.flags.allows_duplicate_labels:
        notes["unique_labels"] = True
    return notes


def _with_notes(built: Any, encoded: dict[str, Any], dec: Decoder) -> Any:
    if "attrs" in encoded:
        attrs = dec.decode(encoded["attrs"])
        if type(attrs) is not dict:
            raise Refused("something else where notes belong")
        built.attrs = attrs
    if "unique_labels" in encoded:
        built.flags.allows_duplicate_labels = False
    return built


def _unpack_index_of(encoded: dict[str, Any], name: str, dec: Decoder) -> Any:
    index = dec.decode(encoded[name])
    check_labels(index)
    return index


def _name_of(encoded: dict[str, Any], dec: Decoder) -> Any:
    name = dec.decode(encoded["name"])
    check_hash(name)
    return name


# ── frames ──────────────────────────────────────────────────────────────────────────────────────────
def _pack_frame(frame: Any, enc: Encoder) -> dict[str, Any]:
    packed = {"columns": enc.at("columns", frame.columns), "index": enc.at("index", frame.index)}
    row_names = _row_names(frame.index)
    columns = [_pack_values(frame.iloc[:, at], enc, row_names) for at in range(frame.shape[1])]
    packed["dtypes"] = [dtype for dtype, _ in columns]
    packed["values"] = [named for _, named in columns]
    by_row = _columns_by_row(frame)
    if by_row:
        packed["by_row"] = by_row
    return {**packed, **_pack_notes(frame, enc)}


def _columns_by_row(frame: Any) -> list[int]:
    """The columns stored row by row, like a numpy matrix: their sums differ in the last digits.

    If such columns have several dtypes, the most frequent one is used; pandas itself makes no such frame.
    """
    by_dtype: dict[str, list[int]] = {}
    for block in getattr(getattr(frame, "_mgr", None), "blocks", ()):  # no public attribute tells
        values = block.values  # a numpy array, or a pandas array, whose strides don't affect sums
        if hasattr(values, "strides") and values.ndim == 2 and min(values.shape) > 1:
            of_columns, of_rows = map(abs, values.strides)
            if of_columns < of_rows:
                by_dtype.setdefault(values.dtype.str, []).extend(map(int, block.mgr_locs.as_array))
    columns = max(by_dtype.values(), key=len, default=[])
    return sorted(columns) if frame.shape[1] - len(columns) <= INSERTED_MAX else []


def _unpack_frame(encoded: dict[str, Any], dec: Decoder) -> Any:
    index = _unpack_index_of(encoded, "index", dec)
    arrays = [
        _unpack_values(dtype, named, dec) for dtype, named in zip(encoded["dtypes"], encoded["values"], strict=True)
    ]
    if any(len(array) != len(index) for array in arrays):
        raise Refused("a data frame whose columns are of other lengths than its index")
    by_row = [int(at) for at in encoded.get("by_row", ())]
    if len(set(by_row)) < len(by_row):
        raise Refused("a data frame with a column that is there twice")
    frame = _build_frame(arrays, by_row, len(index))
    # Set only now: a dict of columns cannot have two with the same name
    frame.index = index
    frame.columns = _unpack_index_of(encoded, "columns", dec)
    return _with_notes(frame, encoded, dec)


def _build_frame(arrays: list[Any], by_row: list[int], rows: int) -> Any:
    pandas = _pandas()
    # Give the dtype, so that none is inferred: pandas 3 would turn text objects into its own string dtype
    columns = {at: pandas.Series(array, dtype=array.dtype) for at, array in enumerate(arrays)}
    if not by_row:
        return pandas.DataFrame(columns, index=pandas.RangeIndex(rows))
    matrix = library("numpy").empty((rows, len(by_row)), dtype=arrays[by_row[0]].dtype)
    for place, at in enumerate(by_row):
        matrix[:, place] = arrays[at]
    frame = pandas.DataFrame(matrix, columns=by_row, dtype=matrix.dtype, copy=False)
    for at in range(len(arrays)):
        if at not in frame:
            frame.insert(at, at, columns[at])
    return frame


# ── series ──────────────────────────────────────────────────────────────────────────────────────────
def _pack_series(series: Any, enc: Encoder) -> dict[str, Any]:
    packed = {"index": enc.at("index", series.index), "name": enc.at("name", series.name)}
    packed["dtype"], packed["values"] = _pack_values(series, enc, _row_names(series.index))
    return {**packed, **_pack_notes(series, enc)}


def _unpack_series(encoded: dict[str, Any], dec: Decoder) -> Any:
    array = _unpack_values(encoded["dtype"], encoded["values"], dec)
    index = _unpack_index_of(encoded, "index", dec)
    series = _pandas().Series(array, index=index, dtype=array.dtype, name=_name_of(encoded, dec), copy=False)
    return _with_notes(series, encoded, dec)


# ── indexes ─────────────────────────────────────────────────────────────────────────────────────────
def _pack_index(index: Any, enc: Encoder) -> dict[str, Any]:
    name = type(index).__name__
    if name == "RangeIndex":
        return {"range": [index.start, index.stop, index.step], "name": enc.at("name", index.name)}
    if name == "MultiIndex":
        return {
            "levels": enc.at("levels", list(index.levels)),
            "codes": enc.at("codes", list(index.codes)),
            "names": enc.at("names", list(index.names)),
            "sortorder": index.sortorder,
        }
    packed: dict[str, Any] = {"name": enc.at("name", index.name)}
    packed["dtype"], packed["values"] = _pack_values(index, enc, [])
    if name in ("DatetimeIndex", "TimedeltaIndex") and index.freq is not None:
        packed["freq"] = freq_name(index.freq)
    return packed


def _unpack_index(encoded: dict[str, Any], dec: Decoder) -> Any:
    pandas = _pandas()
    if "levels" in encoded:
        levels, codes, names = (dec.sequence(encoded[each]) for each in ("levels", "codes", "names"))
        for level in levels:
            check_labels(level)
        for each in names:
            check_hash(each)
        if any(type(each) is not library("numpy").ndarray or each.dtype.kind not in "iu" for each in codes):
            raise Refused("something else where codes belong")
        return pandas.MultiIndex(levels=levels, codes=codes, names=names, sortorder=encoded["sortorder"])
    name = _name_of(encoded, dec)
    if "range" in encoded:
        start, stop, step = map(int, encoded["range"])
        return pandas.RangeIndex(start, stop, step, name=name)
    array = _unpack_values(encoded["dtype"], encoded["values"], dec)
    if "freq" not in encoded:
        return pandas.Index(array, dtype=array.dtype, name=name)
    of_times = pandas.TimedeltaIndex if array.dtype.kind == "m" else pandas.DatetimeIndex
    return of_times(array, freq=freq_named(encoded["freq"]), name=name)


_INDEXES: Final = (
    *("Index", "RangeIndex", "MultiIndex", "CategoricalIndex", "IntervalIndex"),
    *("DatetimeIndex", "TimedeltaIndex", "PeriodIndex"),
)

FRAME: Final = Row("dataframe", is_pandas("DataFrame"), _pack_frame, _unpack_frame)
SERIES: Final = Row("series", is_pandas("Series"), _pack_series, _unpack_series)
INDEX: Final = Row("pdindex", is_pandas(*_INDEXES), _pack_index, _unpack_index)
