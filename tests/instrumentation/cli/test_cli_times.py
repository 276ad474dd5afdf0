"""Times in the forms that people type."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from spanreplay.cli.runs.times import format_duration, format_iso, parse_time, to_ns
from spanreplay.model.config import parse_span

ZONE = timezone(timedelta(hours=2))
NOW = datetime(2026, 11, 21, 9, 20, 30, tzinfo=ZONE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("09:04", "2026-11-21T09:04:00+02:00"),
        ("9:04", "2026-11-21T09:04:00+02:00"),
        ("09:30", "2026-11-20T09:30:00+02:00"),
        ("yesterday 16:31", "2026-11-20T16:31:00+02:00"),
        ("today 23:00", "2026-11-21T23:00:00+02:00"),
        ("yesterday", "2026-11-20T00:00:00+02:00"),
        ("2h", "2026-11-21T07:20:30+02:00"),
        ("7d", "2026-11-14T09:20:30+02:00"),
        ("2026-11-20T16:31:04Z", "2026-11-20T16:31:04+00:00"),
        ("2026-11-20 16:31:04-05:00", "2026-11-20T16:31:04-05:00"),
    ],
)
def test_time_is_read_as_people_write_it(text: str, expected: str) -> None:
    """Clock times mean their latest occurrence, durations count back from now, ISO 8601 is exact."""
    assert parse_time(text, NOW).isoformat() == expected


def test_time_without_zone_is_local() -> None:
    """ISO 8601 without a zone is local time."""
    at = parse_time("2026-11-20T16:31", NOW)
    assert at == datetime(2026, 11, 20, 16, 31).astimezone()


@pytest.mark.parametrize("text", ["", "soon", "24:61", "9.04", "2026-13-01", "10x", "99999w", "-2h"])
def test_time_that_cannot_be_read_is_refused(text: str) -> None:
    """A time that cannot be read is refused, never guessed."""
    with pytest.raises(ValueError, match=r".+"):
        parse_time(text, NOW)


def test_time_lengths_and_formats() -> None:
    """Durations are exact, and formatted for people and for machines."""
    assert parse_span("1.5h") == timedelta(minutes=90)
    assert to_ns(datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=timezone.utc)) == 1_500_000_000
    assert format_iso(1_500_000_000) == "1970-01-01T00:00:01.500Z"
    assert format_iso(0) == ""
    assert [format_duration(n) for n in (5_000_000, 1_500_000_000, 300_000_000_000)] == ["5 ms", "1.5 s", "5.0 min"]
