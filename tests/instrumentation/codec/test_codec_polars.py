"""polars objects come back exactly and show their text to redaction."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal, assert_series_equal

import spanreplay
from spanreplay.codec import Unserializable, decode, encode
from spanreplay.redact import Redactor
from support import polars_values
from support.in_process import recorded, replayed


def _through_json(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value), allow_nan=False)))


@pytest.mark.parametrize("name", polars_values.GOOD)
def test_s61_polars_value_round_trip(name: str) -> None:
    """By polars' own comparison the value comes back exactly, and encodes the same again."""
    value = polars_values.GOOD[name]()
    back = _through_json(value)
    if isinstance(value, pl.DataFrame):
        assert_frame_equal(back, value, check_exact=True)
        assert back.n_chunks("all") == value.n_chunks("all")
    else:
        assert_series_equal(back, value, check_exact=True)
    assert encode(back) == encode(value)


def test_s61_polars_column_sums_to_the_same_bits() -> None:
    """A column keeps its chunks, and so the last digits of its sum."""
    column = polars_values.make_chunked()
    back = _through_json(column)
    assert back.chunk_lengths() == column.chunk_lengths() == [7, 1493, 1501]
    assert (back.sum(), back.mean(), back.std()) == (column.sum(), column.mean(), column.std())


@pytest.mark.parametrize("name", polars_values.BAD)
def test_s36_polars_value_without_codec_is_refused(name: str) -> None:
    """A value that would not come back the same is refused, with its column."""
    make, path = polars_values.BAD[name]
    with pytest.raises(Unserializable) as caught:
        encode(make())
    assert caught.value.path == path


def test_s33_text_in_a_polars_frame_is_redacted() -> None:
    """A key in a text is found, and a column with a secret name masked, as in a list of rows; the rest stays."""
    key = "sk-" + "abcdefghij" * 2
    frame = pl.DataFrame({"note": ["hello", f"use {key}"], "password": ["Hunter2", None], "token": ["Hunter2xx", "of"]})
    redacted = Redactor(b"k" * 32, "b").run().value(encode(frame))
    assert key not in json.dumps(redacted)
    assert "Hunter2" not in json.dumps(redacted)
    back = decode(redacted)
    assert (back.columns, back.dtypes, back.shape) == (frame.columns, frame.dtypes, frame.shape)
    assert (back["note"][0], back["password"][1], back["token"][1]) == ("hello", None, "of")


@spanreplay.boundary("tool", name="total")
def total(frame: pl.DataFrame) -> pl.DataFrame:
    """A tool that takes and returns a frame."""
    return frame.select(pl.col("price").sum())


def test_s27_tool_of_polars_frames_replays_and_names_the_changed_column() -> None:
    """The frame is served; another cell makes another call, and the report names column and row."""
    frame = polars_values.make_mixed()
    recording = recorded(lambda: total(frame))
    assert recording.completeness().is_complete
    replay = replayed(lambda: total(frame), recording)
    assert replay.verdict["verdict"] == "identical"
    assert_frame_equal(replay.result, frame.select(pl.col("price").sum()), check_exact=True)
    changed = frame.with_columns(pl.Series("city", ["Berlin", None, "Zurich"]))
    (found,) = replayed(lambda: total(changed), recording).verdict["divergences"]
    assert [each["path"] for each in found["diff"]] == ["arguments.frame.columns[0].values.city[2]"]


@pytest.mark.parametrize(
    "encoded",
    [
        {"name": "a", "dtype": "LazyFrame", "values": {"a": []}},
        {"name": "a", "dtype": "Object", "values": {"a": [1]}},
        {"name": "a", "dtype": "Int8", "values": {"a": [1000]}},
        {"name": "a", "dtype": "Int8", "values": {"a": [1]}, "chunks": [1, 1]},
        {"name": "a", "dtype": ["Datetime", "parsecs", None], "values": {"a": [1]}},
        {"name": 7, "dtype": "Int8", "values": {}},
    ],
    ids=["no_dtype", "objects", "overflow", "chunks", "unit", "no_values"],
)
def test_codec_refuses_malformed_polars(encoded: dict[str, Any]) -> None:
    """Malformed columns raise Unserializable and no other error."""
    with pytest.raises(Unserializable):
        decode({"$type": "plseries", **encoded})
