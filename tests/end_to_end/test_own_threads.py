"""Threads of ours in the agent's process: they do not make its run one of several threads."""

from __future__ import annotations

import pytest

from support.replaying import Workplace

AGENT = """
import subprocess
import spanreplay


@spanreplay.boundary("llm", name="ask")
def ask(question):
    return "seen " + question


print(subprocess.run(["ls"], capture_output=True, text=True).returncode)
print([ask(each) for each in "abc"])
"""


@pytest.mark.parametrize("fsync", ["never", "interval"])
def test_n2_threads_of_ours_are_none_of_the_run(workplace: Workplace, fsync: str) -> None:
    """A replay starts no process and writes no spool, so that an order among such threads would wait for nobody."""
    agent = workplace.write("agent.py", AGENT)
    workplace.record(agent, SPANREPLAY_FSYNC=fsync)
    manifest = workplace.recording().root.manifest
    assert {name: manifest.get(name) for name in ("timers", "lane_ends")} == {"timers": {}, "lane_ends": {}}
    assert workplace.replay(agent).verdict["verdict"] == "identical"
