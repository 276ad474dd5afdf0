"""pandas frames, series, indexes and scalars that codecs tend to get wrong, by name; for pandas 2 and 3."""

from __future__ import annotations

import datetime as dt
import decimal
import importlib.util
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

_BERLIN = "Europe/Berlin"
_MOMENTS = ["2026-03-28 01:30", "2026-03-29 01:30", None, "2026-10-25 02:30:00.123456789"]


class Ledger(pd.DataFrame):  # type: ignore[misc]  # pandas has no types here
    """A frame with its own state, which pandas doesn't know about."""

    _metadata = ("currency",)
    currency: str


def make_mixed() -> pd.DataFrame:
    """Return a typical frame of an agent."""
    frame = pd.DataFrame(
        {
            "city": ["Berlin", None, "Zürich"],
            "sold": [1, 2, 3],
            "price": [0.1 + 0.2, np.nan, -0.0],
            "open": [True, False, True],
            "at": pd.to_datetime(["2026-03-01 12:30:00.123456789", None, "1999-12-31 00:00:00.000000001"]),
            "kind": pd.Categorical(["b", None, "a"], categories=["c", "b", "a"], ordered=True),
            "note": np.array([{"a": [1, (2, 3)]}, None, pd.NaT], dtype=object),
        },
        index=pd.Index(["x", "y", "x"], name="key"),
    )
    frame.attrs = {"source": "orders.csv", "at": pd.Timestamp("2026-01-01", tz="UTC")}
    return frame


def _make_multi() -> pd.DataFrame:
    columns = pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)], names=["letter", None])
    index = pd.MultiIndex.from_product([["x", "y"], pd.date_range("2026-01-01", periods=2)], names=["key", "day"])
    return pd.DataFrame(np.arange(12.0).reshape(4, 3), index=index, columns=columns).iloc[[3, 0, 1]]


def _make_by_row() -> pd.DataFrame:
    """Return a frame with columns stored row by row in every version, and other columns between them."""
    matrix = np.random.default_rng(7).standard_normal((1001, 4)) * 1e3
    frame = pd.DataFrame(matrix, columns=list("abcd"), copy=False)
    frame.insert(1, "n", np.arange(1001))
    return frame


def _make_every_numpy_dtype() -> pd.DataFrame:
    plain = ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", ">f8"]
    columns = {name: np.array([0, 1, 1]).astype(name) for name in plain}
    for unit in ("s", "ms", "us", "ns"):
        columns[f"M8[{unit}]"] = np.array(["2026-01-01", "NaT", "1677-09-22"], dtype=f"M8[{unit}]")
        columns[f"m8[{unit}]"] = np.array([0, -7, 10**9], dtype=f"m8[{unit}]")
    return pd.DataFrame(columns)


def _make_every_own_dtype() -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for name in ("Int8", "Int64", "UInt16", "Float32", "Float64", "boolean"):
        columns[name] = pd.array([1, None, 0, 1], dtype=name)
    columns["Float64 with NaN"] = pd.arrays.FloatingArray(
        np.array([1.5, np.nan, 2.0, -0.0]), np.array([False, False, True, False])
    )
    columns["zone"] = pd.to_datetime(pd.Series([*_MOMENTS[:3], None])).dt.tz_localize("UTC").dt.tz_convert(_BERLIN)
    columns["offset"] = pd.Series(pd.date_range("2026-01-01", periods=4, tz=dt.timezone(dt.timedelta(hours=5.5))))
    columns["period"] = pd.array(pd.period_range("2026-01", periods=4, freq="M"))
    columns["interval"] = pd.cut(np.array([1, 5, 7, np.nan]), [0, 3, 6, 9])
    columns["bounds"] = pd.arrays.IntervalArray.from_tuples([(0.5, 1.5), None, (2.0, 3.0), (3, 4)], closed="both")
    columns["category of moments"] = pd.Categorical(pd.date_range("2026-01-01", periods=4, tz=_BERLIN))
    columns["category of numbers"] = pd.Categorical([3, 1, None, 3], categories=[3, 2, 1])
    return pd.DataFrame(columns)


def string_dtypes() -> list[Any]:
    """Return every text dtype that this pandas has."""
    found = []
    for storage in ("python", "pyarrow", "pyarrow_numpy"):
        for options in ({}, {"na_value": np.nan}):
            try:
                dtype = pd.StringDtype(storage, **options)
            except (FutureWarning, ImportError, TypeError, ValueError):  # removed or deprecated
                continue
            if dtype not in found:
                found.append(dtype)
    return found


def _make_texts() -> pd.DataFrame:
    columns: dict[Any, Any] = {
        repr(dtype): pd.array(["sk", None, "", "Zoë \U0001f600"], dtype=dtype) for dtype in string_dtypes()
    }
    columns["object"] = np.array(["a", None, "b", "c"], dtype=object)
    columns["object with NaN"] = np.array(["a", np.nan, "b", "c"], dtype=object)
    columns["object with all"] = np.array([None, np.nan, pd.NA, pd.NaT], dtype=object)
    return pd.DataFrame({name: pd.Series(array, dtype=array.dtype) for name, array in columns.items()})


def _make_arrow() -> pd.DataFrame:
    import pyarrow as pa

    columns: dict[str, Any] = {
        "int32": [1, None, -1],
        "double": [0.1, float("nan"), None],
        "bool": [True, None, False],
        "string": ["a", None, "ü"],
        "large_string": ["a", "b", ""],
        "binary": [b"a", b"\xff", None],
        "date32": [dt.date(2026, 1, 1), None, dt.date(1, 1, 1)],
        "timestamp[ns]": [pd.Timestamp("2026-01-01 00:00:00.123456789"), None, pd.Timestamp(0)],
        "duration[us]": [dt.timedelta(1), None, dt.timedelta(microseconds=-1)],
    }
    arrays = {name: pa.array(items, type=pa.type_for_alias(name)) for name, items in columns.items()}
    arrays["zoned"] = pa.array([0, 1, None], type=pa.timestamp("us", tz=_BERLIN))
    return pd.DataFrame({name: pd.arrays.ArrowExtensionArray(array) for name, array in arrays.items()})


def _make_flagged() -> pd.DataFrame:
    return pd.DataFrame({"a": [1]}).set_flags(allows_duplicate_labels=False)


def _make_duplicates() -> pd.DataFrame:
    frame = pd.DataFrame([[1, "x", 2.5], [2, "y", 3.5]], index=[0, 0])
    frame.columns = pd.Index(["a", "b", "a"], name="columns of")
    return frame


def _make_odd_labels() -> pd.DataFrame:
    frame = pd.DataFrame([[1.5] * 7])
    frame.columns = pd.Index([0, 1.5, None, ("a", "b"), "$type", "", pd.Timestamp("2026-01-01")], dtype=object)
    return frame


GOOD: dict[str, Callable[[], Any]] = {
    "frame": make_mixed,
    "frame_of_matrix": lambda: pd.DataFrame(np.arange(6.0).reshape(3, 2) / 3),
    "frame_by_row": _make_by_row,
    "frame_transposed": lambda: make_mixed().T,
    "frame_sliced": lambda: pd.DataFrame(np.arange(12.0).reshape(4, 3), columns=list("abc")).iloc[::2, ::-1],
    "frame_multi": _make_multi,
    "frame_numpy_dtypes": _make_every_numpy_dtype,
    "frame_own_dtypes": _make_every_own_dtype,
    "frame_texts": _make_texts,
    "frame_flagged": _make_flagged,
    "frame_duplicates": _make_duplicates,
    "frame_odd_labels": _make_odd_labels,
    "frame_empty": pd.DataFrame,
    "frame_no_rows": lambda: make_mixed().iloc[:0],
    "frame_no_columns": lambda: make_mixed()[[]],
    "frame_in_frame": lambda: pd.DataFrame({"a": [pd.DataFrame({"b": [1]}), pd.Series(["c"])]}),
    "frame_with_freq": lambda: pd.DataFrame({"a": range(3)}, index=pd.date_range("2026", periods=3, freq="2h")),
    "frame_csv": lambda: pd.read_csv(io.StringIO("day,n\n2026-01-01,1\n,2\n"), parse_dates=["day"]),
    "described": lambda: make_mixed().describe(include="all"),
    "value_counts": lambda: make_mixed()["city"].value_counts(),
    "dtypes": lambda: make_mixed().dtypes,
    "grouped": lambda: make_mixed().groupby("city").agg({"sold": ["sum", "mean"]}),
    "series": lambda: pd.Series([1.5, None], name="price"),
    "series_unnamed": lambda: pd.Series(["a", 1, None]),
    "money": lambda: pd.Series([decimal.Decimal("1.10"), decimal.Decimal("0.00")], name="price"),
    "series_name_tuple": lambda: pd.Series([True], name=("a", 1)),
    "row": lambda: make_mixed().iloc[0],
    "unique": lambda: make_mixed()["city"].unique(),
    "unique_kind": lambda: make_mixed()["kind"].unique(),
    "range_index": lambda: pd.RangeIndex(3, 30, 3, name="n"),
    "text_index": lambda: pd.Index(["a", None, "c"], name="t"),
    "float_index": lambda: pd.Index([0.1, np.nan]),
    "object_index_of_moments": lambda: pd.Index([pd.Timestamp("2026-01-01"), dt.date(2026, 1, 1)], dtype=object),
    "moments": lambda: pd.date_range("2026-03-28", periods=4, freq="D", tz=_BERLIN, name="day"),
    "moments_business": lambda: pd.bdate_range("2026-03-28", periods=4),
    "moments_no_freq": lambda: pd.DatetimeIndex(_MOMENTS[:2]),
    "spans": lambda: pd.timedelta_range("1D", periods=3, freq="36h"),
    "periods": lambda: pd.period_range("2026Q1", periods=3, freq="Q"),
    "categories": lambda: pd.CategoricalIndex(["a", "b", None], categories=["b", "a"], ordered=True, name="c"),
    "intervals": lambda: pd.interval_range(0, 3, name="i"),
    "multi_index": lambda: pd.MultiIndex.from_arrays([["a", None, "b"], [1, 2, 1]], names=["x", ("y", 0)]),
    "timestamp": lambda: pd.Timestamp("2026-03-01 12:30:00.123456789"),
    "timestamp_seconds": lambda: pd.Timestamp("2026-03-01").as_unit("s"),
    "timestamp_ancient": lambda: pd.Timestamp(np.datetime64("0044-03-15", "s")),
    "timestamp_zone": lambda: pd.Timestamp("2026-03-01 12:30", tz=_BERLIN),
    "timestamp_folded": lambda: pd.Timestamp("2026-10-25 00:30", tz="UTC").tz_convert(_BERLIN) + pd.Timedelta(hours=1),
    "timestamp_naive_fold": lambda: pd.Timestamp("2026-10-25 02:30").replace(fold=1),
    "timestamp_offset": lambda: pd.Timestamp("2026-03-01T12:30:00+05:30"),
    "span": lambda: pd.Timedelta(days=-1, nanoseconds=7),
    "span_seconds": lambda: pd.Timedelta(np.timedelta64(90, "s")),
    "period": lambda: pd.Period("2026-03", freq="M"),
    "interval": lambda: pd.Interval(pd.Timestamp("2026-01-01"), pd.Timestamp("2026-02-01"), closed="neither"),
    "missing": lambda: [pd.NaT, pd.NA, None],
    "categorical": lambda: pd.Categorical(["a", "b", "a"]),
    "integers": lambda: pd.array([1, None, 3], dtype="Int16"),
    "array_of_moments": lambda: pd.date_range("2026-01-01", periods=2, freq="D").array,
    "array_of_spans": lambda: pd.array(pd.to_timedelta(["1D", None])),
    "own_dtypes": lambda: [pd.Int64Dtype(), pd.CategoricalDtype(["a"], ordered=True), pd.StringDtype("python"),
                           pd.DatetimeTZDtype("us", _BERLIN), pd.PeriodDtype("D"), pd.IntervalDtype("float64", "left"),
                           pd.IntervalDtype(pd.DatetimeTZDtype("ns", "UTC"), "left"), pd.CategoricalDtype()],
}  # fmt: skip
if importlib.util.find_spec("pyarrow") is not None:
    GOOD["frame_arrow"] = _make_arrow


def _make_sparse() -> Any:
    return {"f": pd.DataFrame({"a": [1], "b": pd.arrays.SparseArray([0])})}


# Where the refusal points to.
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "frame_of_objects": (lambda: {"f": pd.DataFrame({"a": [1, 2], "b": [1, object()]})}, "$.f.b[1]"),
    "frame_with_attrs": (lambda: _with_attrs(object()), "$.attrs.x"),
    "frame_subclass": (lambda: {"f": Ledger({"a": [1]})}, "$.f"),
    "sparse_column": (_make_sparse, "$.f.b"),
    "series_of_functions": (lambda: pd.Series([print, len], name="f"), "$.f[0]"),
    "index_of_objects": (lambda: pd.DataFrame({"a": [1]}, index=pd.Index([object()])), "$.index[0]"),
    "holidays": (
        lambda: pd.date_range("2026", periods=2, freq=pd.offsets.CustomBusinessDay(holidays=["2026-01-01"])),
        "$",
    ),
    "frame_in_itself": (lambda: _with_itself(), "$.a[0]"),
}


def _with_attrs(value: Any) -> pd.DataFrame:
    frame = pd.DataFrame({"a": [1]})
    frame.attrs["x"] = value
    return frame


def _with_itself() -> pd.DataFrame:
    frame = pd.DataFrame({"a": np.array([None], dtype=object)})
    frame.at[0, "a"] = frame
    return frame


def describe(value: Any, describe_item: Callable[[Any], Any]) -> Any:
    """Describe a pandas value without the codec; its items are described by `describe_item`."""
    if isinstance(value, pd.MultiIndex):
        return [describe(level, describe_item) for level in value.levels], [c.tolist() for c in value.codes]
    if isinstance(value, pd.Index):
        named = (type(value), repr(value.dtype), describe_item(value.name), str(getattr(value, "freq", None)))
        return *named, [describe_item(item) for item in value.tolist()]
    if isinstance(value, pd.Series):
        held = (repr(value.dtype), describe_item(value.name), describe_item(value.attrs), repr(value.flags))
        return *held, describe(value.index, describe_item), [describe_item(item) for item in value.tolist()]
    if isinstance(value, pd.DataFrame):
        columns = [describe(value.iloc[:, at], describe_item) for at in range(value.shape[1])]
        labels = (describe(value.columns, describe_item), describe(value.index, describe_item))
        return *labels, columns, describe_item(value.attrs), repr(value.flags)
    if isinstance(value, pd.api.extensions.ExtensionArray):
        return type(value), repr(value.dtype), [describe_item(item) for item in value.tolist()]
    if isinstance(value, pd.Timestamp):
        return value.isoformat(), value.unit, value.fold, str(value.tz), type(value.tz)
    return type(value), repr(value)
