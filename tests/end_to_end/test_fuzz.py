"""`spanreplay fuzz` on real agents: a planted failure near a recording is found, made small, and happens again."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import Any

import pytest

from support.provider import Provider
from support.replaying import BIN, Workplace

AGENT = """
import json, os, urllib.request
import spanreplay

@spanreplay.boundary("tool", effect="read")
def stock(symbol):
    return {"price": 12.5, "count": 40, "lots": [{"id": "a", "size": 10}, {"id": "b", "size": 30}], "note": "in store"}

@spanreplay.boundary("tool", effect="irreversible")
def sell_everything():
    raise RuntimeError("this must never run in a replay")

def ask(text):
    body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": text}]}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    asked = urllib.request.Request(url, body, {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"]

plan = ask("what do we do?")
found = stock("ACME")
if found["price"] > 99:
    sell_everything()
share = 1000 // found["count"]
print(len(plan) > 0, share)
"""


def _fuzz(workplace: Workplace, *args: str, status: int) -> subprocess.CompletedProcess[str]:
    done = workplace.run("fuzz", "latest", *args, "--", str(workplace.python), "agent.py")
    assert done.returncode == status, done.stderr
    return done


def _find(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in json.loads(done.stdout)["findings"]}


def _replay(workplace: Workplace, command: str) -> tuple[str, int, dict[str, Any]]:
    """What a printed command does: output, status, and the verdict without the members that name this replay."""
    words = shlex.split(command)
    report = workplace.path / "verdict.json"
    done = subprocess.run(
        [str(BIN / "spanreplay"), "replay", "--json", str(report), *words[2:]],
        cwd=workplace.path,
        env=workplace.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    verdict = json.loads(report.read_text(encoding="utf-8"))
    for name in ("replay_run_id", "duration_ms"):
        verdict.pop(name)
    for each in verdict["divergences"]:
        each.pop("replay_span_id")
    return done.stdout, done.returncode, verdict


@pytest.mark.slow
def test_s37_n10_planted_failures_are_found_and_made_small(provider: Provider, workplace: Workplace) -> None:
    """`fuzz --seed 7 -n 200` finds a new call and an exception, each with its smallest patch, which happens again."""
    workplace.write("agent.py", AGENT)
    workplace.record("agent.py")
    provider.stop()
    asked = len(provider.requests)
    runs = len(list((workplace.path / ".spanreplay" / "spool").iterdir()))
    done = _fuzz(workplace, "--seed", "7", "-n", "200", "--json", status=3)
    told = json.loads(done.stdout)
    assert (told["seed"], told["variations"], told["broken"]) == (7, 200, 0)
    found = _find(done)
    sold = found["calls tool:sell_everything"]
    divided = found["the agent raised ZeroDivisionError at agent.py:23 <module>"]
    assert sold["set"] == ["tool:stock[1].response.price = 99.1"]
    assert divided["set"] == ["tool:stock[1].response.count = 0"]
    assert [(each["before"], each["field"]) for each in (*sold["changes"], *divided["changes"])] == [
        (12.5, "price"),
        (40, "count"),
    ]
    assert sold["repeats"]
    assert divided["repeats"]
    assert len(provider.requests) == asked
    assert len(list((workplace.path / ".spanreplay" / "spool").iterdir())) == runs
    first, again = (_replay(workplace, divided["command"]) for _ in range(2))
    assert first == again
    assert first[1] == 3
    assert first[2]["exit"]["now"] == 1


CHECK = """
import json, sys
trial = json.load(sys.stdin)
if trial["exit"]:
    sys.exit(125)
share = int(trial["stdout"].split()[-1])
made = [call["boundary"] for call in trial["calls"]]
assert made == ["llm:openai.chat.completions", "tool:stock"], made
if share > 1000:
    sys.exit(f"a share of {share}")
"""


@pytest.mark.slow
def test_s37_n10_check_decides_and_failures_are_saved(provider: Provider, workplace: Workplace) -> None:
    """A check sees exit status, output and calls; what it refuses is told in its words, as options of `replay`."""
    workplace.write("agent.py", AGENT.replace("    sell_everything()", "    pass"))
    workplace.write("check.py", CHECK)
    workplace.record("agent.py")
    provider.stop()
    chosen = ("--only", "tool:stock", "--field", "count", "--kind", "value", "-n", "12")
    done = _fuzz(workplace, "--check", f"{workplace.python} check.py", *chosen, status=0)
    assert "no failure in 12 variations" in done.stderr
    workplace.write("check.py", CHECK.replace("share > 1000", "share < 0"))
    done = _fuzz(workplace, "--check", f"{workplace.python} check.py", *chosen, "--save", "found", status=3)
    assert "✘ a share of -1000" in done.stdout
    assert "--set 'tool:stock[1].response.count = -1'" in done.stdout
    assert "left the recording, so their end is unknown" in done.stderr
    _check_saved(workplace)
    workplace.write("check.py", "raise SystemExit('never content')")
    refused = _fuzz(workplace, "--check", f"{workplace.python} check.py", status=1)
    assert "the unchanged run does not pass" in refused.stderr
    assert "never content" in refused.stderr
    refused = _fuzz(workplace, "--check", "no-such-program", status=1)
    assert "cannot run the check 'no-such-program'" in refused.stderr
    refused = _fuzz(workplace, "--only", "mcp", status=1)
    assert "no answer in this run has a field that could be changed" in refused.stderr


def _check_saved(workplace: Workplace) -> None:
    """The failure is a recording that replays as it says without options, and names what it was derived from."""
    (saved,) = (workplace.path / "found").iterdir()
    replayed = workplace.replay("agent.py", source=str(saved))
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical")
    assert replayed.stdout.split()[-1] == "-1000"
    origin = f"derived from {workplace.recording().run_id} by fuzz: it does not show what happened"
    assert origin in replayed.stderr
    assert origin in workplace.run("show", str(saved)).stdout


STREAMING = """
import os
from groq import Groq

text = ""
done = False
for event in Groq(max_retries=0).chat.completions.create(
    model="gpt-4o", stream=True, messages=[{"role": "user", "content": "go"}]
):
    for choice in event.choices:
        text += choice.delta.content or ""
        done = done or choice.finish_reason == "stop"
if not done:
    raise RuntimeError("the stream broke off")
print(len(text) > 0)
"""


@pytest.mark.slow
def test_s37_stream_that_breaks_off_is_found(provider: Provider, workplace: Workplace) -> None:
    """Events of a streamed answer are removed, and the smallest such change that fails is one event."""
    workplace.write("agent.py", STREAMING)
    workplace.record("agent.py")
    provider.stop()
    found = _find(_fuzz(workplace, "--kind", "stream", "-n", "12", "--json", status=3))
    assert len(found) == 1
    (broken,) = found.values()
    assert "the stream broke off" in broken["failure"]
    assert broken["set"][0].startswith(("llm:openai.chat.completions[1].response.events = [", "delete llm:"))
