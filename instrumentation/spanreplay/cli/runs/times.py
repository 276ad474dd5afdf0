"""Parse and format times as people write them: `09:04`, `yesterday 09:04`, `2026-11-20T09:04`, `2h`."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import click

from spanreplay.model import config

_CLOCK = re.compile(r"(?:(today|yesterday)\s+)?(\d{1,2}):(\d{2})(?::(\d{2}))?\Z")
_DAYS = {"today": 0, "yesterday": 1}


def _parse_clock(match: re.Match[str], now: datetime) -> datetime:
    day, hour, minute, second = match.groups()
    at = now.replace(hour=int(hour), minute=int(minute), second=int(second or 0), microsecond=0)
    if day is not None:
        return at - timedelta(days=_DAYS[day])
    # A bare clock time means its latest occurrence: at 08:50, `09:04` is yesterday's.
    return at if at <= now else at - timedelta(days=1)


def parse_time(text: str, now: datetime) -> datetime:
    """Parse a time: clock time, ISO 8601 (local unless it names a zone), or a duration ago.

    `now` carries the local time zone. Raises: ValueError.
    """
    stripped = text.strip()
    clock = _CLOCK.match(stripped.lower())
    if clock is not None:
        return _parse_clock(clock, now)
    if stripped.lower() in _DAYS:
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight - timedelta(days=_DAYS[stripped.lower()])
    if config.SPAN.match(stripped.lower()):
        return now - config.parse_span(stripped)
    iso = stripped[:-1] + "+00:00" if stripped[-1:] in ("Z", "z") else stripped  # Python 3.10 knows no Z
    try:
        at = datetime.fromisoformat(iso)
    except ValueError as exc:
        raise ValueError(f"{text!r} is not a time; use 09:04, 'yesterday 09:04', 2026-11-20T09:04 or 2h") from exc
    return at if at.tzinfo is not None else at.astimezone()


def local_now() -> datetime:
    """The current time, with the local time zone."""
    return datetime.now().astimezone()


def to_ns(at: datetime) -> int:
    """Nanoseconds since the epoch."""
    return int(at.timestamp()) * 1_000_000_000 + at.microsecond * 1000


def format_local(ns: int) -> str:
    """Format a time as local date and time to the second; empty for 0."""
    return datetime.fromtimestamp(ns / 1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S") if ns else ""


def format_short(ns: int) -> str:
    """Like `format_local` without the year, for narrow screens."""
    return format_local(ns)[5:]


def format_iso(ns: int) -> str:
    """Format a time as ISO 8601 in UTC, to the millisecond; empty for 0."""
    if not ns:
        return ""
    from datetime import timezone

    at = datetime.fromtimestamp(ns // 1_000_000_000, timezone.utc)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{ns // 1_000_000 % 1000:03d}Z"


def format_duration(ns: int) -> str:
    """Format a duration for people."""
    ms = ns / 1e6
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 120_000 else f"{ms / 60_000:.1f} min"


def time_option(text: str) -> int:
    """Parse a time option to nanoseconds since the epoch. Raises: BadParameter."""
    try:
        return to_ns(parse_time(text, local_now()))
    except (ValueError, OverflowError) as exc:
        raise click.BadParameter(str(exc)) from exc


def span_option(text: str) -> int:
    """Parse a duration option to nanoseconds. Raises: BadParameter."""
    try:
        return int(config.parse_span(text).total_seconds() * 1e9)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc
