"""The first line of a verdict tells a person the most important fact."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig

import pytest

from spanreplay.report.json import parse
from spanreplay.report.words import describe_ignored
from support.replaying import TIMEOUT_S, Workplace

AGENT = """
import os, sys, time
import spanreplay

@spanreplay.boundary("tool", effect="read")
def look(n):
    return n

class Client:
    def __init__(self, key):
        if not key:
            raise ValueError("no key is set")

time.monotonic()
client = Client("key")
print(look(1))
time.monotonic()
print(look(2))
"""


def _first_line(workplace: Workplace, change: tuple[str, str]) -> str:
    workplace.write("agent.py", AGENT)
    workplace.record("agent.py")
    workplace.write("agent.py", AGENT.replace(*change))
    done = workplace.replay("agent.py")
    assert done.status == 3
    kinds = [d["kind"] for d in done.verdict["divergences"] if not d["downstream"]]
    assert len(kinds) == 1, kinds
    return next(line for line in done.stderr.splitlines() if line.startswith("✘"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            ('Client("key")', 'Client("")'),
            "✘ diverged: the agent raised ValueError before its first call "
            '(agent.py:12: raise ValueError("no key is set")): no key is set',
        ),
        (
            ("client = ", "import nothing_of_this_name\nclient = "),
            "✘ diverged: the agent raised ModuleNotFoundError before its first call "
            "(agent.py:15: import nothing_of_this_name): No module named 'nothing_of_this_name'",
        ),
        (
            ("print(look(1))", 'print(look(1))\nopen("gone.txt")'),
            "✘ diverged: the agent raised FileNotFoundError after call 1 "
            "(agent.py:17: open(\"gone.txt\")): [Errno 2] No such file or directory: 'gone.txt'",
        ),
    ],
    ids=["constructor", "import", "missing file"],
)
def test_p12_an_exception_that_the_recording_has_not_leads(
    workplace: Workplace, change: tuple[str, str], expected: str
) -> None:
    """The exception that ended the agent comes before the calls and clock reads that it prevented."""
    assert _first_line(workplace, change) == expected


def test_p12_another_python_that_lacks_the_agents_packages_is_the_cause(workplace: Workplace) -> None:
    """As where spanreplay is installed for itself: the verdict names both interpreters, and the command to use."""
    own = workplace.path / "own"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", own], check=True, timeout=TIMEOUT_S)
    site = next(own.glob("lib/python3*/site-packages"))
    (site / "theirs.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})")
    (site / "only_here.py").write_text("")
    workplace.write("agent.py", "import only_here\n" + AGENT)
    recorded = workplace.spawn([str(own / "bin" / "python"), "agent.py"])
    _, said = recorded.communicate(timeout=TIMEOUT_S)
    assert recorded.returncode == 0, said
    run_id = workplace.recording().run_id
    done = workplace.run("replay", run_id)
    assert done.returncode == 3, done.stderr
    said = " ".join(done.stderr.split())
    assert f"cause the agent was recorded with {own}/bin/python, and runs now with {sys.executable}" in said
    assert f"hint name it: spanreplay replay {run_id} -- {own}/bin/python agent.py" in said
    assert workplace.run("replay", run_id, "--", str(own / "bin" / "python"), "agent.py").returncode == 0


def test_p12_a_call_that_changed_before_an_exception_leads(workplace: Workplace) -> None:
    """If a call differed first and was served anyway, the exception comes after it."""
    workplace.write("agent.py", AGENT)
    workplace.record("agent.py")
    workplace.write("agent.py", AGENT.replace("look(1))", "look(9))") + "\nraise RuntimeError('later')\n")
    done = workplace.replay("agent.py", options=["--on-change", "serve"])
    found = [d["kind"] for d in done.verdict["divergences"]]
    assert found[0] == "changed_call"
    assert "raised" in found


def test_p12_reads_of_the_clock_lead_only_alone(workplace: Workplace) -> None:
    """A missing read is the cause if nothing else differs, and comes after a changed call otherwise."""
    line = _first_line(workplace, ("time.monotonic()\nclient", "client"))
    assert "time.monotonic was read 2 times" in line
    changed = AGENT.replace("time.monotonic()\nclient", "client").replace("look(2)", "look(3)")
    workplace.write("agent.py", changed)
    done = workplace.replay("agent.py", options=["--on-change", "serve"])
    assert "✘ diverged at call 2 (tool:look)" in done.stderr


def test_p12_one_line_for_equal_ignored_differences() -> None:
    """Eighteen calls to another server give one line; the rest of their URLs is as recorded."""
    empty = {"schema": "divergence/1", "verdict": "identical"}
    then, now = "http://127.0.0.1:37493", "https://api.openai.com"
    ignored = [
        {"call": n, "boundary": "llm:x", "diff": [{"path": "url", "recorded": f"{then}/{n}", "now": f"{now}/{n}"}]}
        for n in range(1, 19)
    ]
    assert describe_ignored(parse(json.dumps({**empty, "ignored_diffs": ignored}))) == [
        f"base URL: 18 calls, {then} → {now}"
    ]
    one = [{"call": 4, "boundary": "llm:x", "diff": [{"path": "user", "recorded": "a", "now": "b"}]}]
    assert describe_ignored(parse(json.dumps({**empty, "ignored_diffs": one}))) == ["call 4 (llm:x) user: 'a' → 'b'"]
