"""Compares how long a request may take with the recorded limit: a difference where it decides how the call ends.

A call that failed because its time was over says nothing about a longer limit; one that was answered in a second would
have failed under a shorter one. Other changes of a limit are only listed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from spanreplay.model.call import CallRecord, Outcome
from spanreplay.replayer.divergence import Diff
from spanreplay.runtime.wire.timeouts import TIMEOUT

__all__ = ["compare_timeouts", "describe_limits", "has_other_timeout"]

_ALL: Final = ("read", "connect", "total")
_EXPIRED: Final = {
    ("connecttimeout", "connect timeout", "connection timeout"): ("connect", "total"),
    ("readtimeout", "read timeout", "read timed out"): ("read", "total"),
    ("deadline exceeded", "deadline_exceeded"): ("total",),
    ("timeout", "timed out"): _ALL,
}
"""Words in an error → the limits that it may be about; the first that fit count."""
_NO_LIMIT: Final = "no limit"


def has_other_timeout(call: CallRecord, now: Any) -> bool:
    """Whether a recorded request had other limits than those now, as the meta of both states them."""
    return now is not None and TIMEOUT in call.meta and call.meta[TIMEOUT] != now


def compare_timeouts(call: CallRecord, now: Any) -> tuple[tuple[Diff, ...], tuple[Diff, ...]]:
    """Return the limits that are different: (those that decide how the call ends, those only listed)."""
    then = call.meta.get(TIMEOUT)
    if not isinstance(then, dict) or not isinstance(now, dict):
        return (), ()
    changed: list[Diff] = []
    listed: list[Diff] = []
    expired = _find_expired(call)
    for name in _ALL:
        old, new = _seconds(then.get(name)), _seconds(now.get(name))
        if old != new:
            decides = name in expired and new > old if expired else new < _longest(call, name)
            (changed if decides else listed).append(Diff(f"timeout.{name}", _write(old), _write(new)))
    return tuple(changed), tuple(listed)


def describe_limits(call: CallRecord, changed: Sequence[Diff]) -> str:
    """Say in words which limit decides, and how the recorded call ended."""
    first, took_s = changed[0], (call.end_ns - call.start_ns) / 1e9
    ended = f"ran into it after {took_s:.1f} s" if _find_expired(call) else f"took {took_s:.1f} s"
    return f"its {first.path} was {first.recorded}, now {first.now}; the recorded call {ended}"


def _find_expired(call: CallRecord) -> tuple[str, ...]:
    """Return the limits of which one may have ended a call; () if it ended otherwise."""
    if call.outcome != Outcome.ERROR.value:
        return ()
    text = call.response.lower()
    return next((names for words, names in _EXPIRED.items() if any(word in text for word in words)), ())


def _longest(call: CallRecord, name: str) -> float:
    """Return the longest time in seconds that this limit was for: all of the call, or a wait for data."""
    whole_s = (call.end_ns - call.start_ns) / 1e9
    if name == "connect":  # nobody knows how long that took
        return 0.0
    times_s = _arrivals(call) if name == "read" else []
    return max((later - earlier for earlier, later in pairwise([0.0, *times_s])), default=whole_s)


def _arrivals(call: CallRecord) -> list[float]:
    """Return when the pieces of a response came, in seconds; [] if the recording doesn't say."""
    try:
        chunks = json.loads(call.response)["chunks"]
        return [float(chunk[0]) / 1000 for chunk in chunks]
    except (ValueError, TypeError, LookupError):
        return []


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else float("inf")


def _write(seconds: float) -> str:
    return _NO_LIMIT if seconds == float("inf") else f"{seconds:g} s"
