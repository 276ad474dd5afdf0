"""Programs ended by a finalizer: when that happens depends on the garbage collector and is not part of the run."""

from __future__ import annotations

from typing import Final

import pytest

from support.replaying import Workplace

AGENT: Final = """
import gc, os, subprocess, sys, weakref
from spanreplay import boundary

gc.disable()
early = bool(os.environ.get("EARLY"))

@boundary("tool", effect="read")
def ask(number):
    return number

class Helper:
    def __init__(self):
        self.process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.process.stdin.write(b"hello\\n")
        self.process.stdin.flush()
        print(self.process.stdout.readline())
        self.itself = self  # collected, and not counted down

class Deleted(Helper):
    def __del__(self):
        self.process.terminate()
        self.process.wait()

def end(process):
    process.kill()
    process.wait()

class Finalized(Helper):
    def __init__(self):
        super().__init__()
        weakref.finalize(self, end, self.process)

{"deleted": Deleted, "finalized": Finalized}[sys.argv[1]]()
ask(1)
if early:
    gc.collect()
ask(2)
gc.collect()
ask(3)
"""


@pytest.mark.parametrize("how", ["deleted", "finalized"])
def test_n2_a_program_that_a_finalizer_ends_may_end_elsewhere(workplace: Workplace, how: str) -> None:
    """The run is the same even if the collector runs at another call in the replay."""
    agent = workplace.write("agent.py", AGENT)
    recorded = workplace.record(agent, how)
    boundaries = [call.boundary for call in workplace.recording().calls]
    assert boundaries.count("tool:subprocess.cat") == 1
    assert not [each for each in boundaries if "send_signal" in each]
    for early in ("", "1"):
        replayed = workplace.replay(agent, how, EARLY=early)
        assert (replayed.verdict["verdict"], replayed.stdout) == ("identical", recorded.stdout), replayed.stderr


LIBRARY: Final = """
def ask():
    return 1

class Client:
    def __del__(self):
        ask()
"""
AT_THE_END: Final = """
import client, sqlite3
kept = client.Client()
print(sqlite3.connect(":memory:").execute("SELECT 1").fetchone())
"""


def test_n2_objects_of_a_script_are_finalized_before_their_modules_are_cleared(workplace: Workplace) -> None:
    """A recorded script ends as an unrecorded one: nothing keeps it longer than the modules that it uses."""
    workplace.write("client.py", LIBRARY)
    recorded = workplace.record(workplace.write("agent.py", AT_THE_END))
    assert "Exception ignored" not in recorded.stderr
