"""An agent's module search path is the same in a replay as when recorded."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from support.agents import instrument
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


STARTED = """
import json, os, sys
is_recorded = "spanreplay.activate.install" in sys.modules
encodings = sys.flags.utf8_mode, sys.stdout.encoding, sys.getfilesystemencoding(), open(os.devnull).encoding
print(json.dumps([is_recorded, dict(os.environ), sys.path, sys.argv, sys.orig_argv, sys.executable, encodings]))
"""


@pytest.mark.parametrize(
    ("before", "named", "locale"),
    [
        ("", "python", {}),
        ("{here}/lib", "{python}", {"LANG": "C.UTF-8"}),
        ("{here}/lib:{here}:/nowhere", "{python}", {"LC_ALL": "C"}),
    ],
)
def test_u1_tests_start_agents_as_the_documented_command_does(
    workplace: Workplace, before: str, named: str, locale: dict[str, str]
) -> None:
    """With and without folders on the path, the program sees what `opentelemetry-instrument` lets it see."""
    workplace.write("agent.py", STARTED)
    environ = {**workplace.environ, "PYTHONPATH": before.format(here=workplace.path), **locale}
    command = [named.format(python=workplace.python), "agent.py", "--option"]
    words, variables = instrument(command, environ, workplace.path, workplace.python)
    documented = [str(workplace.python.parent / "opentelemetry-instrument"), *command]
    assert words != documented
    ours, theirs = (
        subprocess.run(each, cwd=workplace.path, env=told, capture_output=True, text=True, check=True)
        for each, told in ((words, variables), (documented, environ))
    )
    assert json.loads(ours.stdout) == json.loads(theirs.stdout)
    assert json.loads(ours.stdout)[0] is True
