"""Our threads in the agent's process don't make its run multithreaded."""

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
    """A replay starts no process and writes no spool, so waiting for the recorded order of our threads would block."""
    agent = workplace.write("agent.py", AGENT)
    workplace.record(agent, SPANREPLAY_FSYNC=fsync)
    manifest = workplace.recording().root.manifest
    assert {name: manifest.get(name) for name in ("timers", "lane_ends")} == {"timers": {}, "lane_ends": {}}
    assert workplace.replay(agent).verdict["verdict"] == "identical"


RETRYING = """
import subprocess
import threading
import time

begun = threading.Event()

def again_and_again():
    for delay in (0.001, 40, 40):
        subprocess.run(["date", "+%N"])
        begun.set()
        time.sleep(delay)

threading.Thread(target=again_and_again, daemon=True).start()
begun.wait()
time.sleep(0.05)
print(sum(range(10_000_000)))
"""


def test_p10_a_thread_asleep_at_the_end_of_the_run_sleeps_in_the_replay(workplace: Workplace) -> None:
    """A background thread doesn't continue past the recorded end of the run while its replay computes."""
    agent = workplace.write("agent.py", RETRYING)
    workplace.record(agent)
    assert len(workplace.recording().calls) == 2
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
