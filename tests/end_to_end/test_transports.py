"""The transport is not part of a call: HTTP/1.1, HTTP/2 and an application in the same process are equivalent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from spanreplay.model.call import Recording
from support.agents import AGENTS
from support.ports import free_port, wait_for_port
from support.replaying import TIMEOUT_S, Workplace

HOW = ("h1", "h2", "asgi")
AGENT = AGENTS / "transports" / "agent.py"
VERSIONS = {"h1": "HTTP/1.1", "h2": "HTTP/2", "asgi": "HTTP/1.1"}


@pytest.fixture
def server() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The application behind a real server that speaks HTTP/1.1 and HTTP/2 on one port."""
    port = free_port()
    command = [str(Path(sys.executable).parent / "granian"), "--interface", "asgi", "--http", "auto", "app:app"]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"],
        cwd=AGENT.parent,
        env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
    )
    try:
        wait_for_port(port)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def _version(recording: Recording) -> set[str]:
    return {json.loads(call.response)["http_version"] for call in recording.calls}


@pytest.mark.slow
def test_s6_recordings_over_three_transports_replay_each_other(
    server: tuple[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """The same agent has the same keys over each, and each recording replays identically over the other two."""
    url, process = server
    places = {}
    for how in HOW:
        (tmp_path / how).mkdir()
        places[how] = Workplace(tmp_path / how, {"APP_URL": url})
    printed = {how: there.record(AGENT, how).stdout for how, there in places.items()}
    process.terminate()
    process.wait(TIMEOUT_S)
    recordings = {how: there.recording() for how, there in places.items()}
    assert {how: _version(recording) for how, recording in recordings.items()} == {h: {v} for h, v in VERSIONS.items()}
    assert len(set(printed.values())) == 3
    # Sorted: the transport decides which call of a `gather` leaves first
    keys = {how: sorted((c.lane, c.boundary, c.index, c.key) for c in r.calls) for how, r in recordings.items()}
    assert keys["h1"] == keys["h2"] == keys["asgi"]
    assert len(keys["h1"]) == 8
    for recorded, replayed_over in permutations(HOW, 2):
        replayed = places[recorded].replay(AGENT, replayed_over)
        assert replayed.stdout == printed[recorded], (recorded, replayed_over)
        assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
        assert replayed.verdict["sockets_denied"] == []
