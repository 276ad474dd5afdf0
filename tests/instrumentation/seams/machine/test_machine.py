"""Agents that report the machine's name replay with the name of the machine where they were recorded."""

from __future__ import annotations

import platform
import socket
from pathlib import Path

import pytest

import spanreplay
from spanreplay import record, replay


@spanreplay.boundary("tool", name="report", effect="read")
def report(host: str) -> str:
    """Report to somebody."""
    return f"reported {host}"


def _agent() -> list[str]:
    return [socket.gethostname(), platform.node(), report(socket.gethostname())]


def _be(name: str, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(socket, "gethostname", lambda: name)
    patch.setattr(platform, "node", lambda: name)


def test_machine_has_the_name_that_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine the agent sees, and sends, the recorded name; after the replay it sees the real one."""
    monkeypatch.chdir(tmp_path)
    _be("here", monkeypatch)
    with record() as recorded:
        first = _agent()
    _be("elsewhere", monkeypatch)
    with replay(recorded.run_id) as session:
        assert _agent() == first == ["here", "here", "reported here"]
    assert session.verdict()["verdict"] == "identical"
    assert socket.gethostname() == "elsewhere"
