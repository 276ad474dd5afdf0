"""Programs in Python that prepare the environment and then execute the agent in their place, like `ddtrace-run`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from support.provider import Provider
from support.replaying import Workplace

LAUNCHER: Final = """
import os, sys
os.environ["LAUNCHED_BY"] = "the launcher"
os.environ["PYTHONPATH"] = os.pathsep.join((os.getcwd(), os.environ.get("PYTHONPATH", "")))
os.execvp(sys.executable, [sys.executable, *sys.argv[1:]])
"""
AGENT: Final = """
import os, sys, time, uuid
from groq import Groq
asked = [{"role": "user", "content": f"by {os.environ['LAUNCHED_BY']}"}]
print(Groq().chat.completions.create(model="gpt-x", messages=asked).choices[0].message.content)
print(time.time(), uuid.uuid4())
if sys.argv[1:]:
    os.execv(sys.argv[1], sys.argv[1:])
"""


def test_p1_an_agent_behind_a_launcher_replays_behind_it(provider: Provider, tmp_path: Path) -> None:
    """What the launcher sets reaches the agent, and a changed prompt is a difference."""
    workplace = Workplace(tmp_path, provider.environ())
    workplace.write("launch.py", LAUNCHER)
    workplace.write("agent.py", AGENT)
    recorded = workplace.run("record", "--", sys.executable, "launch.py", "agent.py")
    assert recorded.returncode == 0, recorded.stderr
    provider.stop()
    replayed = workplace.replay("launch.py", "agent.py")
    assert replayed.status == 0, replayed.stderr
    assert (replayed.verdict["verdict"], replayed.stdout) == ("identical", recorded.stdout)
    workplace.write("launch.py", LAUNCHER.replace("the launcher", "another launcher"))
    changed = workplace.replay("launch.py", "agent.py")
    assert changed.status == 3
    assert changed.causes() == [("changed_call", "llm:openai.chat.completions")]


def test_p1_s27_an_agent_that_executes_another_program_is_stopped(provider: Provider, tmp_path: Path) -> None:
    """After its first call no program is executed, not even the same Python."""
    workplace = Workplace(tmp_path, provider.environ())
    workplace.write("agent.py", AGENT)
    workplace.environ["LAUNCHED_BY"] = "hand"
    workplace.record("agent.py")
    provider.stop()
    for command in (["/bin/echo", "executed"], [sys.executable, "-c", "print('executed')"]):
        replayed = workplace.replay("agent.py", *command)
        assert replayed.status == 3
        assert "effect_blocked" in [kind for kind, _ in replayed.causes()]
        assert "executed" not in replayed.stdout
