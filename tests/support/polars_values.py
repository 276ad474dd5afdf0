"""polars frames and series that codecs tend to get wrong, by name."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

_NOON = dt.datetime(2026, 3, 1, 12, 30, 0, 123456)


def make_mixed() -> pl.DataFrame:
    """Return a frame with every dtype that has a codec."""
    columns: list[pl.Series] = [
        pl.Series("city", ["Berlin", None, "Z\u00fcrich"]),
        pl.Series("sold", [1, None, -3], dtype=pl.Int16),
        pl.Series("most", [2**64 - 1, 0, None], dtype=pl.UInt64),
        pl.Series("price", [0.1 + 0.2, float("nan"), None]),
        pl.Series("share", [0.5, float("inf"), -0.0], dtype=pl.Float32),
        pl.Series("open", [True, None, False]),
        pl.Series("raw", [b"text", b"\xff", None]),
        pl.Series("nothing", [None, None, None]),
        pl.Series("day", [dt.date(2026, 3, 1), None, dt.date(1, 1, 1)]),
        pl.Series("clock", [dt.time(1, 2, 3, 4), None, dt.time(0)]),
        pl.Series("cost", [decimal.Decimal("1.10"), None, decimal.Decimal("-0.05")], dtype=pl.Decimal(12, 2)),
        pl.Series("tags", [["a", None], [], None]),
        pl.Series("place", [{"x": 1, "y": [0.5]}, {"x": None, "y": None}, {"x": 2, "y": []}]),
    ]
    for unit in ("ms", "us", "ns"):
        ticks = pl.Series(f"in {unit}", [1, None, -(10**12) - 1], dtype=pl.Int64)
        columns += [
            ticks.cast(pl.Datetime(unit)).rename(f"at {unit}"),
            ticks.cast(pl.Datetime(unit, "Europe/Berlin")).rename(f"there {unit}"),
            ticks.cast(pl.Duration(unit)).rename(f"for {unit}"),
        ]
    return pl.DataFrame(columns)


def make_chunked() -> pl.Series:
    """Return a series of several chunks, as appending creates."""
    numbers = np.random.default_rng(3).standard_normal(3001) * 1e3
    return pl.concat([pl.Series("n", part) for part in np.split(numbers, [7, 1500])], rechunk=False)


GOOD: dict[str, Callable[[], Any]] = {
    "frame": make_mixed,
    "frame_empty": pl.DataFrame,
    "frame_no_rows": lambda: make_mixed().clear(),
    "frame_chunked": lambda: make_chunked().to_frame().with_columns(pl.lit("x").alias("$type")),
    "series": lambda: pl.Series("n", [1.5, None]),
    "series_unnamed": lambda: pl.Series([_NOON]),
    "series_chunked": make_chunked,
}

# Where the refusal points to.
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "objects": (lambda: {"f": pl.DataFrame({"a": [1], "b": pl.Series([object()], dtype=pl.Object)})}, "$.f.b"),
    "categories": (lambda: pl.Series("c", ["a"], dtype=pl.Categorical), "$.c"),
    "lists_of_times": (lambda: pl.DataFrame({"t": [[_NOON]]}), "$.t"),
    "lazy": (lambda: [pl.DataFrame({"a": [1]}).lazy()], "$[0]"),
}
