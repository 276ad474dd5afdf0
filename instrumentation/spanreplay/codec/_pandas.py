"""Codecs of pandas' frames, series and indexes; pandas is used only where it is loaded, or named by a recording.

The values of a column stand under its name, as they do in a list of rows, so that redaction by names sees them; a
frame's `columns` and its index say everything else about the labels. Subclasses (geopandas) are refused: what they
hold besides, pandas does not know.
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
"""More rows than this are no settings by name."""
INSERTED_MAX: Final = 64
"""pandas warns of a frame that has more pieces than 100."""


def _pandas() -> Any:
    return library("pandas")


# ── values under their names ──────────────────────────────────────────────────────────────────────────────
def _row_names(index: Any) -> list[str]:
    """The labels of rows if one of them says that its row is a secret, as in a record of settings; else []."""
    if len(index) > ROW_NAMES_MAX or type(index).__name__ != "Index":
        return []
    names = [label_text(label) for label in index.tolist()]
    return names if any(says_secret(name) for name in names) else []


def _pack_values(series: Any, enc: Encoder, row_names: list[str]) -> tuple[Any, dict[str, Any]]:
    """The dtype, and the values under the name: of a series, a column, an index."""
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
    """The columns that memory holds row after row, as a numpy matrix does: their sums differ in the last digits.

    Of several dtypes of such columns it is the one that most have; pandas makes no such frame by itself.
    """
    by_dtype: dict[str, list[int]] = {}
    for block in getattr(getattr(frame, "_mgr", None), "blocks", ()):  # no public name says it
        values = block.values  # a numpy array, or one of pandas' own, whose strides nobody sums along
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
    # Only now: a dict of columns cannot have two of one name
    frame.index = index
    frame.columns = _unpack_index_of(encoded, "columns", dec)
    return _with_notes(frame, encoded, dec)


def _build_frame(arrays: list[Any], by_row: list[int], rows: int) -> Any:
    pandas = _pandas()
    # A dtype that is given is not inferred: an array of text objects would become one of pandas 3's texts
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
