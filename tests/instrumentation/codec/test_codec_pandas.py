"""pandas objects come back exactly, have one key, show their text to redaction, and replay."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spanreplay
from spanreplay.codec import Unserializable, decode, encode
from spanreplay.redact import Redactor
from support import pandas_values
from support.in_process import recorded, replayed
from support.secret_samples import SECRETS

KEY = "".join(sample.secret for sample in SECRETS if sample.text == "sk-" + "abcdefghij" * 2)


def _through_json(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value), allow_nan=False)))


def _assert_same(back: Any, value: Any) -> None:
    exactly = {"check_exact": True, "check_freq": True, "check_flags": True}
    assert type(back) is type(value)
    if isinstance(value, pd.DataFrame):
        pd.testing.assert_frame_equal(back, value, **exactly)
        assert back.attrs == value.attrs
    elif isinstance(value, pd.Series):
        pd.testing.assert_series_equal(back, value, **exactly)
    elif isinstance(value, pd.Index):
        pd.testing.assert_index_equal(back, value, exact=True, check_exact=True)
    elif isinstance(value, pd.api.extensions.ExtensionArray):
        pd.testing.assert_extension_array_equal(back, value, check_exact=True)
    elif isinstance(value, np.ndarray):
        np.testing.assert_array_equal(back, value, strict=True)
    elif not isinstance(value, list) and value is not pd.NA:
        assert back == value


# ── values ──────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", pandas_values.GOOD)
def test_s61_pandas_value_round_trip(name: str) -> None:
    """By pandas' own comparison the value comes back exactly, and encodes the same again."""
    value = pandas_values.GOOD[name]()
    back = _through_json(value)
    _assert_same(back, value)
    assert encode(back) == encode(value)


cells = {
    "i8": st.integers(-(2**63), 2**63 - 1),
    "u1": st.integers(0, 255),
    "f8": st.floats(),
    "f4": st.floats(width=32),
    "c16": st.complex_numbers(),
    "bool": st.booleans(),
    "M8[ns]": st.integers(-(2**63), 2**63 - 1),
    "m8[s]": st.integers(-(2**53), 2**53),
    "Int64": st.none() | st.integers(-(2**63), 2**63 - 1),
    "boolean": st.none() | st.booleans(),
    "Float64": st.none() | st.floats(allow_nan=False),
    "string": st.none() | st.text(),
    "category": st.none() | st.sampled_from(["a", "b", "\U0001f600"]),
    "object": st.none() | st.text() | st.integers() | st.floats() | st.lists(st.integers(), max_size=2),
}
labels = st.text(max_size=3) | st.integers() | st.none() | st.tuples(st.text(max_size=2), st.integers())


@st.composite
def frames(draw: st.DrawFn) -> pd.DataFrame:
    """A frame with columns of any dtype and any labels, which may repeat."""
    rows = draw(st.integers(0, 4))
    columns = []
    for name in draw(st.lists(st.sampled_from(sorted(cells)), max_size=5)):
        items = draw(st.lists(cells[name], min_size=rows, max_size=rows))
        if name == "object":
            array = np.empty(rows, dtype=object)
            array[:] = items
            columns.append(pd.Series(array, dtype=object))
        elif name[0] in "Mm":
            columns.append(pd.Series(np.array(items, dtype="i8").view(name)))
        else:
            columns.append(pd.Series(items, dtype=name))
    frame = pd.DataFrame(dict(enumerate(columns)), index=pd.RangeIndex(rows))
    frame.columns = pd.Index(draw(st.lists(labels, min_size=len(columns), max_size=len(columns))), dtype=object)
    frame.index = pd.Index(draw(st.lists(labels, min_size=rows, max_size=rows)), dtype=object)
    return frame


@settings(deadline=None, max_examples=100)
@given(frames())
def test_s61_any_frame_round_trips(frame: pd.DataFrame) -> None:
    """For any columns and labels, the frame comes back exactly, and has one encoding."""
    encoded = encode(frame)
    back = decode(json.loads(json.dumps(encoded, allow_nan=False)))
    _assert_same(back, frame)
    assert json.dumps(encode(back)) == json.dumps(encoded) == json.dumps(encode(frame.copy()))


def test_s61_frame_sums_to_the_same_bits() -> None:
    """Frames in row-major and in column-major memory add up in the same order as before."""
    matrix = np.random.default_rng(7).standard_normal((1001, 4)) * 1e3
    by_row = pd.DataFrame(matrix, columns=list("abcd"), copy=False)
    by_column = pd.DataFrame({name: by_row[name].to_numpy().copy() for name in by_row})
    assert by_row.sum().tolist() != by_column.sum().tolist()  # else the test would show nothing
    mixed = by_row.copy(deep=False)
    mixed.insert(1, "n", np.arange(1001))
    mixed["text"] = "x"
    for frame in (by_row, by_column, mixed, by_row[::2], by_row[["a"]], by_row.T, by_column.T):
        assert _sums(_through_json(frame)) == _sums(frame)


def _sums(frame: pd.DataFrame) -> list[Any]:
    matrix = frame.to_numpy()
    by_pandas = [frame.sum(numeric_only=True).tolist(), frame.mean(numeric_only=True).tolist()]
    return by_pandas if matrix.dtype == object else [*by_pandas, matrix.sum(0).tolist(), matrix.sum(1).tolist()]


def test_s61_frame_of_many_pieces_warns_of_nothing() -> None:
    """Row-major columns among very many others lose their layout, without a pandas warning."""
    frame = pd.concat([pd.DataFrame(np.ones((3, 2)), copy=False), pd.DataFrame([[1] * 150] * 3)], axis=1)
    _assert_same(_through_json(frame), frame)


def test_s36_frame_of_a_class_of_its_own_is_refused() -> None:
    """A subclass would come back as a plain frame, so it is refused by its name."""
    with pytest.raises(Unserializable, match="Ledger"):
        encode(pandas_values.Ledger({"a": [1]}))


@pytest.mark.parametrize("name", pandas_values.BAD)
def test_s36_what_cannot_be_written_exactly_is_refused(name: str) -> None:
    """The error gives the column and the row of the value."""
    make, path = pandas_values.BAD[name]
    with pytest.raises(Unserializable) as caught:
        encode(make())
    assert caught.value.path == path


def test_codec_frame_leaves_its_frame_alone() -> None:
    """Encoding leaves the frame unchanged: missing texts stay missing in their own way."""
    for dtype in pandas_values.string_dtypes():
        series = pd.Series(["a", None], dtype=dtype)
        encode(series)
        assert series.isna().tolist() == [False, True]
        assert series[1] is dtype.na_value


def test_codec_imports_no_pandas() -> None:
    """Values of other kinds are encoded and decoded without importing pandas."""
    code = (
        "import sys, decimal; from spanreplay.codec import decode, encode\n"
        "decode(encode([decimal.Decimal(1), {1: b'x'}, {'a'}]))\n"
        "print([name for name in ('pandas', 'numpy', 'polars', 'pyarrow', 'pytz') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, timeout=600)
    assert done.stdout == "[]\n"


# ── redaction ───────────────────────────────────────────────────────────────────────────────────────
def _redact(value: Any) -> Any:
    return Redactor(b"k" * 32, "b").run().value(encode(value))


def _texts(dtype: Any) -> pd.DataFrame:
    return pd.DataFrame({"note": pd.Series(["hello", f"use {KEY} now", None], dtype=dtype)})


@pytest.mark.parametrize("dtype", [object, "category", *pandas_values.string_dtypes()], ids=repr)
def test_s33_key_in_a_text_column_is_redacted(dtype: Any) -> None:
    """An API key in any kind of text column is not recorded; the rest of the frame is."""
    redacted = _redact(_texts(dtype))
    assert KEY not in json.dumps(redacted)
    back = decode(redacted)
    assert back["note"].dtype.name == _texts(dtype)["note"].dtype.name
    assert back["note"][0] == "hello"
    assert back["note"][1].startswith("use rdx-")
    assert back["note"].isna().tolist() == [False, False, True]


@pytest.mark.parametrize(
    "make",
    [
        lambda: pd.DataFrame({"name": ["ada", "bob"], "password": ["Hunter2Hunter2", None]}),
        lambda: pd.DataFrame({("user", "name"): ["ada"], ("user", "password"): ["Hunter2Hunter2"]}),
        lambda: pd.DataFrame({"name": ["ada"], "token": ["Hunter2Hunter2"]}),
        lambda: pd.DataFrame({"name": ["ada"], "password": ["Hunter2Hunter2"]}).T,
        lambda: pd.DataFrame({"value": ["ada", "Hunter2Hunter2"]}, index=["name", "password"]),
        lambda: pd.Series({"name": "ada", "password": "Hunter2Hunter2", "n": 1}),
        lambda: pd.Series(["Hunter2Hunter2"], name="password"),
        lambda: pd.Index(["Hunter2Hunter2", "ada"], name="password"),
        lambda: pd.DataFrame({"n": [1]}, index=pd.Index(["Hunter2Hunter2"], name="password")),
        lambda: pd.MultiIndex.from_arrays([["Hunter2Hunter2"], ["ada"]], names=["password", "name"]),
    ],
    ids=["column", "levels", "token", "transposed", "rows", "record", "series", "index", "frame_index", "multi_index"],
)
def test_s33_text_under_a_secret_name_is_redacted(make: Any) -> None:
    """A column or row with a secret name is masked like such a member of an object; the shape stays."""
    value = make()
    redacted = _redact(value)
    assert "Hunter2" not in json.dumps(redacted)
    assert "rdx-" in json.dumps(redacted)
    assert decode(redacted).shape == value.shape


def test_s33_numbers_under_a_secret_name_are_masked_and_not_served() -> None:
    """Numbers and categories under a secret name are not recorded, and using them raises an error that says so."""
    for column in (np.array([1234, 5678]), pd.array([1, None], dtype="Int64"), pd.array([0.5, 1.5])):
        redacted = _redact(pd.DataFrame({"n": [1, 2], "password": column}))
        assert redacted["values"][0] == encode(pd.DataFrame({"n": [1, 2]}))["values"][0]
        with pytest.raises(Unserializable, match="redaction may have masked them for their name"):
            decode(redacted)


def test_s33_numbers_are_not_taken_for_secrets() -> None:
    """Redaction finds no secrets in the bytes of numbers."""
    rng = np.random.default_rng(1)
    redactor = Redactor(b"k" * 32, "b").run()
    for column in (rng.standard_normal(20_000), np.zeros(5_000), np.arange(5_000), rng.integers(0, 99, 5_000)):
        encoded = encode(pd.DataFrame({"n": column}))
        assert redactor.value(encoded) is encoded


# ── replay ──────────────────────────────────────────────────────────────────────────────────────────
class Shop:
    """An agent with a tool that returns a frame and one that takes it."""

    def __init__(self) -> None:
        self.loads = 0
        self.changes: dict[str, Any] = {}

    @spanreplay.boundary("tool", name="load_orders")
    def load(self) -> pd.DataFrame:
        """Return the orders; the body must not run in a replay."""
        self.loads += 1
        frame = pandas_values.make_mixed()
        frame["note"] = ["a", f"key {KEY}", "c"]
        return frame

    @spanreplay.boundary("tool", name="forecast")
    def forecast(self, orders: pd.DataFrame, *, days: int = 7) -> pd.Series:
        """Compute something from the frame."""
        return orders["price"] * days

    def run(self) -> Any:
        """Load, change, use."""
        orders = self.load()
        orders = orders.assign(**self.changes)
        return self.forecast(orders), orders


def test_s27_tools_that_give_and_take_frames_replay() -> None:
    """The recording is complete, has no secret, and serves both frames exactly, without running a body."""
    shop = Shop()
    recording = recorded(shop.run)
    assert recording.completeness().is_complete
    assert KEY not in "".join(call.request + call.response for call in recording.calls)
    replay = replayed(shop.run, recording)
    assert replay.error is None
    assert (replay.verdict["verdict"], shop.loads) == ("identical", 1)
    forecast, orders = replay.result
    expected = pandas_values.make_mixed()
    pd.testing.assert_series_equal(forecast, expected["price"] * 7, check_exact=True)
    pd.testing.assert_frame_equal(orders.drop(columns="note"), expected.drop(columns="note"), check_exact=True)
    assert orders["note"].tolist()[1] == f"key {KEY}"  # sealed in the recording, and the key is here


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"sold": [1, 2, 4]}, "arguments.orders.values[1].sold.b64"),
        ({"city": ["Berlin", None, "Zurich"]}, "arguments.orders.values[0].city[2]"),
        ({"sold": [1.0, 2.0, 3.0]}, "arguments.orders.dtypes[1]"),
    ],
    ids=["number", "text", "dtype"],
)
def test_s36_changed_cell_names_its_column(changes: dict[str, Any], path: str) -> None:
    """Another cell makes another call, and the report names its column, and its row for text."""
    shop = Shop()
    recording = recorded(shop.run)
    shop.changes = changes
    (found,) = replayed(shop.run, recording).verdict["divergences"]
    assert found["kind"] == "changed_call"
    assert path in [each["path"] for each in found["diff"]]
