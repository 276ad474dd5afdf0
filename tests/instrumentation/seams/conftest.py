"""Fixtures of the transport tests: a server that can be stopped, and agents that use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spanreplay.model.call import Recording
from support.replaying import Replayed, Workplace
from support.web_server import WebServer


@pytest.fixture
def web() -> Iterator[WebServer]:
    """A server that runs while the test does, unless the test stops it."""
    with WebServer() as running:
        yield running


@pytest.fixture
def workplace(web: WebServer, tmp_path: Path) -> Workplace:
    """A directory to record in; its agents get the server as $URL and a closed port as $NOBODY."""
    return Workplace(tmp_path, {"URL": web.url, "NOBODY": "http://127.0.0.1:9"})


def _assert_identical(replayed: Replayed, stdout: str, recording: Recording) -> None:
    assert replayed.verdict.get("verdict") == "identical", replayed.stderr + str(replayed.verdict.get("divergences"))
    assert replayed.stdout == stdout
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert replayed.verdict["counts"]["exact"] == len(recording.calls)
    assert replayed.verdict["sockets_denied"] == []


@pytest.fixture
def assert_identical() -> Callable[[Replayed, str, Recording], None]:
    """Assert that a replay gave the same output and made no request."""
    return _assert_identical


@pytest.fixture
def round_trip(web: WebServer, workplace: Workplace) -> Callable[[str], Recording]:
    """Record an agent, stop the server, replay, and assert equal output. Returns the recording."""

    def run(source: str) -> Recording:
        agent = workplace.write("agent.py", source)
        recorded = workplace.record(agent)
        web.stop()
        recording = workplace.recording()
        _assert_identical(workplace.replay(agent), recorded.stdout, recording)
        return recording

    return run
