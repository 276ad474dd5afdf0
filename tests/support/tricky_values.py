"""Values that keys tend to get wrong, by name; `python -c` with `print_keys()` prints each one's key."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import json
import math
import pathlib
import re
import threading
import types
import typing
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pydantic
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from spanreplay.codec import Unserializable, encode
from spanreplay.model.keys import compute_key
from support import pandas_values, polars_values


class Color(enum.Enum):
    """A plain enum."""

    RED = "red"


class Level(str, enum.Enum):
    """An enum that is a string."""

    HIGH = "high"


class Bits(enum.Flag):
    """An enum that combines."""

    A = 1
    B = 2


@dataclasses.dataclass
class Order:
    """A dataclass with a nested value."""

    amount: decimal.Decimal
    placed: dt.datetime
    tags: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True)
class Sealed:
    """A frozen dataclass with slots."""

    __slots__ = ("name",)
    name: str


@attrs.define
class Parcel:
    """An attrs class."""

    weight: float
    items: tuple[int, ...] = ()


class Point(typing.NamedTuple):
    """A named tuple."""

    x: int
    y: int = 0


class Line(pydantic.BaseModel):
    """A model within a model."""

    sku: str
    price: decimal.Decimal


class Invoice(pydantic.BaseModel):
    """A pydantic model."""

    model_config = pydantic.ConfigDict(extra="allow")
    lines: list[Line]
    due: dt.datetime
    color: Color = Color.RED
    _seen: int = pydantic.PrivateAttr(default=3)


class Tagged(str):
    """A string subclass."""

    __slots__ = ()

    def __str__(self) -> str:
        return "<Tagged at 0x7f00>"


class Zone(zoneinfo.ZoneInfo):
    """A time zone with a name of its own, as tortoise-orm has."""

    @property
    def zone(self) -> str:
        """The name under which pytz has it."""
        return self.key


class Client:
    """A client object, as every agent has one; no key may contain it."""


def _circular_list() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


def _circular_dict() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = {"again": value}
    return value


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    return value


_UTC = dt.timezone.utc
_BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
_NOON = dt.datetime(2026, 3, 1, 12, 30, 0, 123456)

GOOD: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "true_is_not_one": lambda: [True, 1],
    "minus_zero": lambda: -0.0,
    "integral_float": lambda: 1.0,
    "tenth": lambda: 0.1 + 0.2,
    "smallest_float": lambda: 5e-324,
    "largest_float": lambda: 1.7976931348623157e308,
    "beyond_2_53": lambda: 2**53 + 1,
    "beyond_64_bit": lambda: -(2**200),
    "nan": lambda: math.nan,
    "infinities": lambda: [math.inf, -math.inf],
    "composed": lambda: "e\u0301",
    "lone_surrogate": lambda: "cut \ud83d",
    "astral_key": lambda: {"\U0001f600": 1, "\ufb33": 2},
    "empty_key": lambda: {"": {}},
    "type_key": lambda: {"$type": "exception", "class": "os:system"},
    "unsorted_dict": lambda: {"b": 1, "a": {"d": 2, "c": 3}},
    "int_keys": lambda: {2: "b", 1: "a"},
    "mixed_keys": lambda: {(1, 2): "t", None: "n", "s": 1.5, Color.RED: 2},
    "tuple": lambda: (1, (2, 3)),
    "set_of_text": lambda: {"beta", "alpha", "gamma", "delta", "epsilon"},
    "set_of_mixed": lambda: {1, "1", (1, 2), None, frozenset({2})},
    "frozenset": lambda: frozenset({"x", "y", "z"}),
    "bytes_of_text": lambda: b"hello",
    "bytes_raw": lambda: b"\xff\x00\xfe",
    "bytearray": lambda: bytearray(b"abc"),
    "memoryview": lambda: memoryview(b"a\xff\x00"),
    "memoryview_of_numbers": lambda: memoryview(b"abcdefgh").cast("I", [1, 2]),
    "naive_datetime": lambda: _NOON,
    "utc_datetime": lambda: _NOON.replace(tzinfo=_UTC),
    "offset_datetime": lambda: _NOON.replace(tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))),
    "zone_datetime": lambda: _NOON.replace(tzinfo=_BERLIN),
    "zone_of_a_subclass": lambda: _NOON.replace(tzinfo=Zone("Europe/Berlin")),
    "folded_datetime": lambda: dt.datetime(2026, 10, 25, 2, 30, tzinfo=_BERLIN, fold=1),
    "date": lambda: dt.date(2026, 3, 1),
    "time": lambda: dt.time(1, 2, 3, tzinfo=_UTC),
    "timedelta": lambda: dt.timedelta(days=-1, microseconds=7),
    "decimal": lambda: decimal.Decimal("190000.00"),
    "decimal_exponent": lambda: [decimal.Decimal("1E+3"), decimal.Decimal("NaN"), decimal.Decimal("-0")],
    "fraction": lambda: fractions.Fraction(1, 3),
    "complex": lambda: complex(1, -0.0),
    "uuid": lambda: uuid.UUID("0192f0e1-0000-7000-8000-000000000001"),
    "path": lambda: pathlib.PurePosixPath("/srv/agent"),
    "enum": lambda: Color.RED,
    "string_enum": lambda: Level.HIGH,
    "flag": lambda: Bits.A | Bits.B,
    "dataclass": lambda: Order(decimal.Decimal("1.10"), _NOON, {"vip", "eu", "net30"}),
    "frozen_slots": lambda: Sealed("n"),
    "attrs": lambda: Parcel(1.5, (1, 2)),
    "named_tuple": lambda: Point(1),
    "pydantic": lambda: Invoice(lines=[Line(sku="a", price=decimal.Decimal("2.50"))], due=_NOON),
    "pydantic_parsed": lambda: Invoice.model_validate_json('{"lines":[],"due":"2026-03-01T12:00:00Z","po":7}'),
    "document": lambda: Document("text", metadata={"score": 0.5, "at": _NOON}),
    "messages": lambda: [HumanMessage("hi"), AIMessage("yo"), ToolMessage("42", tool_call_id="call_1")],
    "array": lambda: np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "array_of_images": lambda: np.arange(24.0).reshape(2, 3, 2, 2).transpose(0, 3, 1, 2),
    "array_of_text": lambda: np.array([["a", "longer"], ["", "\ud83d"]]),
    "array_of_bytes": lambda: np.array([b"a", b"\xff\xfe"]),
    "array_of_moments": lambda: np.array(["2026-01-01", "NaT"], dtype="M8[25s]"),
    "array_of_one_object": lambda: np.array("x", dtype=object),
    "array_of_long_doubles": lambda: np.arange(3, dtype=np.longdouble) / 3,
    "array_without_items": lambda: np.zeros((0, 3), dtype=">c8"),
    "numpy_scalars": lambda: [np.float64(0.1), np.int64(7), np.bool_(True), np.str_("s"), np.bytes_(b"\xff")],
    "numpy_times": lambda: [np.datetime64("2026-01"), np.datetime64("NaT", "s"), np.timedelta64(3, "W")],
    "numpy_dtypes": lambda: [np.dtype("f4"), np.dtype("O"), np.dtype("U7"), np.dtype(">M8[us]")],
    "ordered_dict": lambda: collections.OrderedDict(b=1, a=2),
    "counter": lambda: collections.Counter("abracadabra"),
    "defaultdict": lambda: collections.defaultdict(list, {"k": [1]}),
    "deque": lambda: collections.deque([1, 2], maxlen=4),
    "pattern": lambda: re.compile(r"\d+", re.IGNORECASE),
    "range_and_slice": lambda: [range(1, 10, 3), slice(None, 2), ...],
    "model_class": lambda: Invoice,
    "text_subclass": lambda: Tagged("content"),
    "exception": lambda: ValueError("bad amount", 190000),
    "empty_containers": lambda: [[], {}, (), set(), "", b""],
    **{f"pandas_{name}": make for name, make in pandas_values.GOOD.items()},
    **{f"polars_{name}": make for name, make in polars_values.GOOD.items()},
}

# Where the refusal points to.
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "object": (object, "$"),
    "object_in_state": (lambda: {"a": {"b": object()}}, "$.a.b"),
    "client_in_list": (lambda: {"a": [0, 1, 2, Client()]}, "$.a[3]"),
    "odd_key": (lambda: {"state now": {"x-y": Client()}}, '$["state now"].x-y'),
    "lambda": (lambda: [lambda: 0], "$[0]"),
    "partial": (lambda: {"f": functools.partial(print)}, "$.f"),
    "generator": (lambda: {"g": (n for n in [0])}, "$.g"),
    "lock": (lambda: {"lock": threading.Lock()}, "$.lock"),
    "module": (lambda: {"m": math}, "$.m"),
    "namespace": (lambda: {"n": types.SimpleNamespace(a=1)}, "$.n"),
    "inside_dataclass": (lambda: Order(decimal.Decimal(1), _NOON, {Client()}), "$.tags.items"),  # type: ignore[arg-type]  # wrong on purpose
    "inside_model": (lambda: Document("t", metadata={"client": Client()}), "$.metadata.client"),
    "local_class": (lambda: _make_local(), "$"),
    "circular_list": (_circular_list, "$[1]"),
    "circular_dict": (_circular_dict, "$.self.again"),
    "object_array": (lambda: {"a": np.array([Client(), 1], dtype=object)}, "$.a[0]"),
    "record_array": (lambda: {"a": np.zeros(1, dtype=[("a", "i4")])}, "$.a"),
    "record_scalar": (lambda: {"a": np.zeros(1, dtype=[("a", "i4")])[0]}, "$.a"),
    "void_scalar": (lambda: {"a": np.void(b"abc")}, "$.a"),
    "masked_array": (lambda: {"a": np.ma.array([1, 2])}, "$.a"),
    **{f"pandas_{name}": made for name, made in pandas_values.BAD.items()},
    **{f"polars_{name}": made for name, made in polars_values.BAD.items()},
}


def _make_local() -> Any:
    @dataclasses.dataclass
    class Local:
        a: int = 1

    return Local()


def find_key(value: Any) -> str:
    """Return the key of a tool call with this argument, or where and why there is none."""
    try:
        return compute_key("tool/1", {"name": "t", "arguments": {"value": encode(value)}}).hex
    except Unserializable as exc:
        return f"unserializable at {exc.path}"


def print_keys() -> None:
    """Print all keys as a JSON object."""
    named = {name: find_key(make()) for name, make in GOOD.items()}
    named.update({name: find_key(make()) for name, (make, _) in BAD.items()})
    named["deep"] = find_key(_deep()).partition("[")[0]
    print(json.dumps(named))
