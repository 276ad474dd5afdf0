"""Calls that are deliberately not recorded, and calls above the limit: counted, and never live in a replay."""

from __future__ import annotations

import json

import pytest
from opentelemetry.instrumentation.utils import suppress_instrumentation

import spanreplay
from spanreplay.model import config
from spanreplay.model.errors import ReplayMiss
from support.in_process import recorded, replayed


class Counter:
    """Counts how often a body ran."""

    def __init__(self) -> None:
        self.calls = 0

    @spanreplay.boundary("tool", name="add", effect="write")
    def add(self, row: int) -> int:
        """Count one more call."""
        self.calls += 1
        return row


def test_s27_call_where_instrumentation_is_suppressed_never_runs_live() -> None:
    """Suppressed calls are not recorded, which is a hole; a replay refuses them instead of running the body."""
    counter = Counter()

    def hidden() -> int:
        with suppress_instrumentation():
            return counter.add(1)

    def main() -> int:
        return counter.add(5) + hidden()

    recording = recorded(main)
    assert [json.loads(c.request)["arguments"]["row"] for c in recording.calls] == [5]
    (reason,) = recording.completeness().reasons
    assert "where instrumentation is suppressed" in reason
    assert "test_limits.py" in reason
    before = counter.calls
    replay = replayed(main, recording)
    assert isinstance(replay.error, ReplayMiss)
    assert (counter.calls, replay.verdict["verdict"]) == (before, "incomplete")


def test_calls_of_a_run_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls above the limit are made unrecorded and are counted; a replay ends there."""
    monkeypatch.setattr(config, "CALLS_MAX", 2)
    counter = Counter()

    def main() -> list[int]:
        return [counter.add(n) for n in range(3)]

    recording = recorded(main)
    assert (len(recording.calls), counter.calls) == (2, 3)
    assert recording.completeness().reasons == ("1 calls dropped",)
    replay = replayed(main, recording)
    assert isinstance(replay.error, ReplayMiss)
    assert (counter.calls, replay.verdict["verdict"]) == (3, "incomplete")
