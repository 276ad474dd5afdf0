"""The codec gives back equal values of the same type."""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanreplay.codec import Unserializable, decode, encode
from spanreplay.codec._table import ROWS
from support import pandas_values, tricky_values
from support.tricky_values import Color, Order, Sealed, Tagged


def _through_json(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value))))


def _describe(value: Any) -> Any:
    """Describe type and content at every level, so that a list differs from a tuple and 1 from True."""
    kind = type(value)
    if isinstance(value, np.ndarray | np.generic):
        return kind, value.dtype.str, value.shape, value.strides, _content(value)
    if kind.__module__.startswith("pandas"):
        return kind, pandas_values.describe(value, _describe)
    if isinstance(value, pl.DataFrame):
        return kind, [_describe(column) for column in value]
    if isinstance(value, pl.Series):
        return kind, value.name, repr(value.dtype), value.chunk_lengths(), _describe(value.to_list())
    if isinstance(value, float) and value != value:
        return kind, "nan"
    if isinstance(value, float):
        return kind, value.hex()
    if isinstance(value, BaseException):
        return kind, _describe(value.args)
    if isinstance(value, dict):
        return kind, [(_describe(key), _describe(each)) for key, each in value.items()]
    if isinstance(value, set | frozenset):
        return kind, sorted(repr(_describe(each)) for each in value)
    if isinstance(value, list | tuple):
        return kind, [_describe(each) for each in value]
    if isinstance(value, memoryview):
        return kind, value.format, value.tolist()
    if isinstance(value, dt.datetime | dt.time):
        return kind, value.isoformat(), value.fold, type(value.tzinfo), str(value.tzinfo)
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return kind, [(name, _describe(each)) for name, each in vars(value).items()]
    return kind, repr(value)


def _content(value: Any) -> Any:
    if value.dtype.kind in "OUS":
        return _describe(value.tolist())
    return value.astype("f8").tobytes() if value.dtype.itemsize == 16 else value.tobytes()


@pytest.mark.parametrize("name", tricky_values.GOOD)
def test_s61_codec_round_trip(name: str) -> None:
    """Every tricky value comes back equal, with its type and the types inside."""
    value = tricky_values.GOOD[name]()
    assert _describe(_through_json(value)) == _describe(value)


def test_codec_corpus_uses_every_row() -> None:
    """Each row of the table is tested by a value or by a test that names it."""
    used: set[str] = set()

    def collect(encoded: Any) -> None:
        if isinstance(encoded, dict):
            used.add(str(encoded.get("$type", "")))
            for each in encoded.values():
                collect(each)
        elif isinstance(encoded, list):
            for each in encoded:
                collect(each)

    for make in tricky_values.GOOD.values():
        collect(encode(make()))
    assert {row.tag for row in ROWS} - used | {"pytz"} == {
        *("pydantic1", "secret", "url"),  # test_codec_models.py
        "validation_error",  # test_codec_validation.py
        "pytz",  # test_codec_pytz.py; pandas 2 uses it as well
    }


# Hypothesis also tries the texts that it finds in our code; the tag has its own test
names = st.text(max_size=5).filter(lambda name: name != "$type")
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=20,
)
python_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.decimals()
    | st.datetimes(timezones=st.just(dt.timezone.utc) | st.none())
    | st.timedeltas()
    | st.uuids()
    | st.sampled_from([Color.RED, Sealed("x"), Tagged("t"), "$type", 2**80]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.just("$type") | st.integers(), inner, max_size=3)
    ),
    max_leaves=15,
)


@settings(deadline=None, max_examples=150)
@given(json_values)
def test_codec_plain_json_is_itself(value: Any) -> None:
    """A JSON value is encoded as it is, so that a recording stays readable."""
    assert json.dumps(encode(value)) == json.dumps(value)


@settings(deadline=None, max_examples=150)
@given(python_values)
def test_codec_round_trips_whatever_it_takes(value: Any) -> None:
    """Mixed Python values survive JSON text with their types."""
    assert _describe(_through_json(value)) == _describe(value)


@pytest.mark.parametrize(
    "value",
    [{"$type": "decimal", "value": "1"}, {"$type": {"$type": 1}}, [{"$type": None}], {"a": {"$type": "class"}}],
    ids=["like_ours", "nested", "none", "deeper"],
)
def test_codec_escapes_its_own_tag(value: Any) -> None:
    """A user's dict that looks like an encoded value stays the user's dict."""
    assert _through_json(value) == value
    assert encode(value) != value


def test_codec_keeps_what_post_init_left() -> None:
    """Attributes that are not fields are state, and come back without running __post_init__."""
    order = tricky_values.GOOD["dataclass"]()
    vars(order)["note"] = "added later"
    back = _through_json(order)
    assert type(back) is Order
    assert vars(back)["note"] == "added later"


def test_codec_refuses_a_field_that_the_class_lost() -> None:
    """A field that was renamed since the recording is named in the error, not set as an extra attribute."""
    encoded = encode(Sealed("x"))
    encoded["fields"] = {"title": "x"}
    with pytest.raises(Unserializable, match="has no field 'title' any more"):
        decode(encoded)


def test_codec_bytes_of_text_stay_readable() -> None:
    """Bytes that are text are encoded as text, so that redaction sees them."""
    assert encode(b"token sk-123") == {"$type": "bytes", "text": "token sk-123"}
    assert "text" not in encode(b"\xff")


def test_codec_set_has_one_order() -> None:
    """A set is encoded in the order of its canonical forms."""
    assert encode({"b", "a", "c"})["items"] == ["a", "b", "c"]


def test_codec_nan_and_infinity_are_tagged() -> None:
    """No NaN token, which other parsers refuse, gets into the JSON text."""
    text = json.dumps(encode([math.nan, math.inf, -math.inf]), allow_nan=False)
    assert [str(each) for each in decode(json.loads(text))] == ["nan", "inf", "-inf"]


def test_codec_object_array_round_trip() -> None:
    """An array of objects is encoded element by element."""
    array = np.array([[Color.RED, None], ["x", 2]], dtype=object)
    back = _through_json(array)
    assert back.dtype == object
    assert back.tolist() == array.tolist()


def test_codec_record_array_is_refused() -> None:
    """A dtype that has no plain spelling is refused, not flattened."""
    with pytest.raises(Unserializable, match="numpy array of dtype"):
        encode(np.zeros(2, dtype=[("a", "i4"), ("b", "O")]))


def test_s33_text_in_arrays_stays_readable() -> None:
    """Redaction sees the texts and bytes of an array; their replacements may be longer."""
    for value in (np.array(["sk-123"]), np.array([b"sk-123"]), np.str_("sk-123"), np.bytes_(b"sk-123")):
        text = json.dumps(encode(value))
        assert "sk-123" in text
        back = np.asarray(decode(json.loads(text.replace("sk-123", "rdx-longer-than-before"))))
        assert back.item() in ("rdx-longer-than-before", b"rdx-longer-than-before")


def test_s33_long_doubles_hold_nothing_of_the_memory_before() -> None:
    """The padding bytes of a long double are neither recorded nor part of a key."""
    texts = set()
    for filling in (b"\xff", b"\x00"):
        array = np.frombuffer(filling * 64, np.uint8).copy().view(np.longdouble)
        np.divide(np.arange(1, 1 + len(array), dtype=np.longdouble), 3, out=array)
        assert np.array_equal(_through_json(array), array)
        texts.add(json.dumps([encode(array), encode(array[0]), encode(array + 1j * array)]))
    assert len(texts) == 1


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T,
        lambda a: a[:, ::2],
        lambda a: a[::-1].T,
        lambda a: np.broadcast_to(a[0], a.shape),
        lambda a: a.reshape(7, 143, 4).transpose(1, 2, 0),
        lambda a: a.reshape(1001, 1, 4, 1).T,
        lambda a: a[:1].T,
    ],
    ids=["transposed", "sliced", "reversed", "broadcast", "axes_moved", "axes_of_one", "one_row"],
)
def test_s61_array_sums_to_the_same_bits(view: Any) -> None:
    """The axis order in memory, which decides the last digits of sums, comes back, and encodes the same again."""
    array = view(np.random.default_rng(3).standard_normal((1001, 4)) * 1e3)
    back = _through_json(array)
    assert np.array_equal(back, array)
    for axis in range(array.ndim):
        assert back.sum(axis=axis).tobytes() == np.ascontiguousarray(array.sum(axis=axis)).tobytes()
    assert encode(back) == encode(array)
    assert back.flags.owndata
    assert back.flags.writeable


def test_codec_bounds_the_text_of_an_array() -> None:
    """A dtype of long texts can't make an array that fills the memory."""
    hostile = {"$type": "ndarray", "dtype": "<U99999999", "shape": [2], "items": ["a", "b"]}
    with pytest.raises(Unserializable, match="bytes of text"):
        decode(hostile)
    wide = np.broadcast_to(np.array("x" * 1000), (100_000,))
    with pytest.raises(Unserializable, match="bytes of text"):
        encode(wide)


def test_codec_bounds_depth() -> None:
    """Deep nesting is refused with a path before it exhausts the interpreter's stack."""
    value: Any = 0
    for _ in range(101):
        value = [value]
    with pytest.raises(Unserializable, match="nested deeper than 100 levels"):
        encode(value)
    with pytest.raises(Unserializable, match="nested deeper than 220 levels"):
        decode(json.loads("[" * 500 + "]" * 500))
