"""An agent's module search path is the same in a replay as when recorded."""

from __future__ import annotations

from pathlib import Path

from support.replaying import Workplace

LOOKS_AT_IT = """
import os
import sys
import spanreplay

@spanreplay.boundary("tool", name="note", effect="read")
def note(paths):
    return len(paths)

there = [path for path in sys.path if os.path.isdir(path)]
note(there)
print(sys.path, [os.stat(path).st_mtime_ns for path in there])
"""


def test_an_agent_looks_at_its_module_path(workplace: Workplace) -> None:
    """The folder of `opentelemetry-instrument` is on the path in a replay too, which another folder started."""
    workplace.write("agent.py", LOOKS_AT_IT)
    done = workplace.record("agent.py")
    replayed = workplace.replay("agent.py")
    assert (replayed.stdout, replayed.status) == (done.stdout, 0), replayed.stderr


def test_an_agent_looks_at_the_module_path_of_our_own_command(workplace: Workplace) -> None:
    """Under `spanreplay record` the added folder is ours."""
    workplace.write("agent.py", LOOKS_AT_IT)
    done = workplace.run("record", "--", str(workplace.python), "agent.py")
    replayed = workplace.replay("agent.py")
    assert (replayed.stdout, replayed.status) == (done.stdout, 0), replayed.stderr


def test_what_an_agent_adds_to_its_module_path_is_found(workplace: Workplace, tmp_path: Path) -> None:
    """An additional folder in the changed agent is a difference."""
    workplace.write("agent.py", LOOKS_AT_IT)
    workplace.record("agent.py")
    workplace.write("agent.py", LOOKS_AT_IT.replace("there =", f"sys.path.append({str(tmp_path)!r})\nthere ="))
    replayed = workplace.replay("agent.py")
    assert replayed.causes()[0] == ("changed_call", "tool:note"), replayed.causes()
