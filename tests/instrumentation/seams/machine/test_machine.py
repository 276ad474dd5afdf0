"""Agents that report the machine's name replay with the name of the machine where they were recorded."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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


def _facts() -> list[Any]:
    names = ("system", "release", "version", "machine", "processor", "platform", "uname")
    return [*(getattr(platform, name)() for name in names), os.uname(), os.cpu_count(), getpass.getuser()]


def test_s62_facts_of_the_machine_are_those_that_were_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its system, its processors and its user, each of the type that the agent knows; the replay itself is not told."""
    monkeypatch.chdir(tmp_path)
    with record() as recorded:
        first = _facts()
        report(str(first))
    elsewhere = os.uname_result(("Darwin", "laptop", "25.1", "Darwin Kernel", "arm64"))
    monkeypatch.setattr(os, "uname", lambda: elsewhere)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(getpass, "getuser", lambda: "me")
    monkeypatch.setattr(platform, "_uname_cache", None)
    monkeypatch.setattr(platform, "_platform_cache", {})
    with replay(recorded.run_id) as session:
        again = _facts()
        report(str(again))
    assert again == first
    assert [type(each) for each in again] == [type(each) for each in first]
    assert session.verdict()["verdict"] == "identical"
    assert _facts() != first
    assert _facts()[-3:] == [elsewhere, 3, "me"]


def test_s62_pools_have_the_recorded_number_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool without a size takes it from the number of processors: each job finds the thread that it had."""
    monkeypatch.chdir(tmp_path)

    def agent() -> list[int]:
        here, begun = threading.local(), threading.Barrier(8)

        def work(number: int) -> int:
            if number < 8:
                begun.wait()
            here.count = getattr(here, "count", 0) + 1
            report(str(here.count))
            return int(here.count)

        with ThreadPoolExecutor() as pool:
            return list(pool.map(work, range(12)))

    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    with record() as recorded:
        first = agent()
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    with replay(recorded.run_id) as session:
        assert agent() == first
    assert session.verdict()["verdict"] == "identical"
