"""Time zones of pytz, which pandas 2 uses for the values that it reads."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from spanreplay.codec import decode, encode

pytz = pytest.importorskip("pytz")  # comes with pandas 2


def _zones() -> dict[str, Any]:
    berlin = pytz.timezone("Europe/Berlin")
    return {
        "whole": berlin,
        "summer": berlin.localize(dt.datetime(2026, 7, 1)).tzinfo,
        "before_1893": berlin.localize(dt.datetime(1890, 7, 1)).tzinfo,
        "utc": pytz.utc,
        "static": pytz.timezone("Etc/GMT+5"),
        "offset": pytz.FixedOffset(330),
        "negative_offset": pytz.FixedOffset(-90),
    }


@pytest.mark.parametrize("name", _zones())
def test_s61_pytz_zone_is_the_same_object(name: str) -> None:
    """A zone, or one of its offsets, comes back as the very object that pytz returns."""
    zone = _zones()[name]
    assert decode(json.loads(json.dumps(encode(zone)))) is zone


def test_s61_datetime_keeps_its_pytz_offset() -> None:
    """A datetime in such a zone keeps its instant, zone name and offset."""
    moment = pytz.timezone("Europe/Berlin").localize(dt.datetime(2026, 10, 25, 2, 30), is_dst=True)
    back = decode(json.loads(json.dumps(encode(moment))))
    assert (back, back.tzname(), back.utcoffset()) == (moment, "CEST", dt.timedelta(hours=2))
