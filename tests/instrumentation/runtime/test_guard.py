"""The guard: no failure of ours reaches the agent in production, every failure is raised in tests."""

from __future__ import annotations

import logging
import sys

import pytest

from spanreplay.model import guard
from spanreplay.model.errors import ReplayMiss

SECRET = "sk-proj-Zx9Yw8Vu7"


@pytest.fixture
def production(monkeypatch: pytest.MonkeyPatch) -> None:
    """The behaviour of an agent's process, with empty counters."""
    monkeypatch.setenv("SPANREPLAY_GUARD", "production")
    monkeypatch.setattr(guard, "failures", {})
    monkeypatch.setattr(guard, "_seen", set())


def _fail(text: str) -> None:
    raise ValueError(text)


def test_failure_is_raised_in_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under pytest a failure of ours is an exception, so that no test overlooks it."""
    monkeypatch.setattr(guard, "failures", {})
    with pytest.raises(ValueError, match="broken"):
        guard.guarded("part", _fail, "broken")


def test_failure_is_counted_and_logged_once(production: None, caplog: pytest.LogCaptureFixture) -> None:
    """In production a failure gives None, is counted each time and logged once per cause, without its values."""
    with caplog.at_level(logging.ERROR, logger="spanreplay"):
        assert [guard.guarded("recording a call", _fail, SECRET) for _ in range(3)] == [None] * 3
        guard.guarded("another part", _fail, SECRET)
    assert guard.failures == {"recording a call": 3, "another part": 1}
    assert len(caplog.records) == 2
    assert "ValueError" in caplog.text
    assert "_fail" in caplog.text
    assert SECRET not in caplog.text


def test_miss_passes(production: None) -> None:
    """A ReplayMiss, or any other BaseException that is not an Exception, is never swallowed."""

    def miss() -> None:
        raise ReplayMiss("no answer")

    with pytest.raises(ReplayMiss):
        guard.guarded("part", miss)
    assert guard.failures == {}


def test_causes_are_bounded(production: None, caplog: pytest.LogCaptureFixture) -> None:
    """For any number of failing parts, log lines and memory are limited."""
    with caplog.at_level(logging.ERROR, logger="spanreplay"):
        for n in range(500):
            guard.report_failure(f"part {n}", ValueError())
    assert len(caplog.records) == len(guard._seen) <= 200


def test_result_is_passed_on(production: None) -> None:
    """Without a failure the result is returned."""
    assert guard.guarded("part", lambda a, b: a + b, 1, 2) == 3


@pytest.mark.parametrize("state", ["closed", "none"])
def test_lines_to_a_lost_standard_error_are_lost(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed or absent standard error does not cause a failure."""

    class Closed:
        def write(self, text: str) -> int:
            raise ValueError("I/O operation on closed file")

        def flush(self) -> None:
            return None

    monkeypatch.setattr(sys, "stderr", Closed() if state == "closed" else None)
    guard.write_stderr("line")
