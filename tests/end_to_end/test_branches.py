"""`spanreplay fork`, `splice` and `sweep` on a real agent: served for free up to a call, recorded from there."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from spanreplay.model.call import Recording
from support.provider import Provider
from support.replaying import BIN, Workplace

AGENT = """
import os, random, shutil, sqlite3, sys, time
from pathlib import Path
import spanreplay
from groq import Groq

client = Groq(max_retries=0)
SYSTEM = "be brief"

def ask(text):
    system = LATER if text == "question 2" else SYSTEM
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return client.chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content

LATER = SYSTEM

@spanreplay.boundary("tool", effect="read")
def look(item):
    return {"item": item, "seen": random.random(), "at": time.time()}

@spanreplay.boundary("tool", effect="irreversible")
def pay(amount):
    with open("ledger", "a") as ledger:
        ledger.write(f"{amount}\\n")
    return f"paid {amount}"

token = random.random()
print(ask("question 1"), look("pen")["seen"])
Path("notes.txt").write_text("one")
if not Path("cache").exists():
    os.mkdir("cache")
with sqlite3.connect("memory.db") as db:
    db.execute("CREATE TABLE facts (fact)")
    db.execute("INSERT INTO facts VALUES ('one')")
db.close()
print(ask("question 2"))
print(look("ink")["seen"], Path("notes.txt").read_text(), token)
print(ask("question 3"))
Path("after.txt").write_text("two")
os.makedirs("made/inside", exist_ok=True)
os.rename("after.txt", "made/inside/after.txt")
shutil.copytree("made", "copied", dirs_exist_ok=True)
shutil.rmtree("made")
os.chmod("notes.txt", 0o600)
print(sorted(each.name for each in Path("copied").rglob("*")))
if "--pay" in sys.argv:
    print(pay(12))
"""
CALLS = ["llm:openai.chat.completions", "tool:look"]


def run(workplace: Workplace, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `spanreplay WORDS -- python agent.py`."""
    done = workplace.run(*words, "--", str(workplace.python), "agent.py")
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done


@pytest.fixture
def recorded(provider: Provider, workplace: Workplace) -> tuple[Recording, list[str]]:
    """The agent's run, and what it printed."""
    workplace.write("agent.py", AGENT)
    printed = workplace.record("agent.py").stdout.splitlines()
    provider.requests.clear()
    return workplace.recording(), printed


def number_of(recording: Recording, boundary: str, nth: int) -> int:
    """The number of the nth call of a boundary."""
    return [call.number for call in recording.calls if call.boundary == boundary][nth - 1]


def prompts(provider: Provider) -> list[tuple[str, str]]:
    """System and user text of the requests that the provider got."""
    return [tuple(m["content"] for m in body["messages"]) for _, body in provider.requests]


def check_replays(workplace: Workplace, run_id: str, provider: Provider, printed: str) -> Recording:
    """The new run is complete and replays identical, without the provider."""
    new = next(each for each in workplace.recordings() if each.run_id == run_id)
    assert new.completeness().is_complete, new.completeness().reasons
    asked = len(provider.requests)
    again = workplace.replay("agent.py", source=run_id)
    assert (again.status, again.verdict["verdict"]) == (0, "identical"), again.stderr
    assert again.stdout == printed
    assert len(provider.requests) == asked
    return new


def test_w3_calls_before_the_fork_bill_nothing(
    provider: Provider, workplace: Workplace, recorded: tuple[Recording, list[str]]
) -> None:
    """Only the calls from N on reach the provider, the first with its change; the new run says where it comes from."""
    old, printed = recorded
    names = ("notes.txt", "copied/inside/after.txt")  # written before and after the call
    files = [workplace.path / name for name in names]
    before = [file.stat() for file in files]
    at = number_of(old, CALLS[0], 2)
    done = run(workplace, "fork", old.run_id, "--at", str(at), "--set", 'llm[2].system += ", ask first"')
    assert prompts(provider) == [("be brief, ask first", "question 2"), ("be brief", "question 3")]
    assert done.stdout.splitlines()[0] == printed[0]
    assert printed[2].split()[2] == done.stdout.splitlines()[2].split()[2], "what was drawn before is as recorded"
    assert [file.stat() for file in files] == before, "files of a fork are its own"
    (new,) = [each for each in workplace.recordings() if each.run_id != old.run_id]
    assert (new.root.env["resumes"], new.root.env["forked_at"]) == (old.run_id, at)
    assert [call.boundary for call in new.calls] == [call.boundary for call in old.calls]
    assert [call.response for call in new.calls[: at - 1]] == [call.response for call in old.calls[: at - 1]]
    assert f"forked before call {at} of {old.run_id}" in workplace.run("show", new.run_id).stdout


def test_w3_a_fork_replays_identical(
    provider: Provider, workplace: Workplace, recorded: tuple[Recording, list[str]]
) -> None:
    """With the code as it is, from its first call to its last."""
    old, _ = recorded
    done = run(workplace, "fork", old.run_id, "--at", str(number_of(old, CALLS[0], 2)))
    (new,) = [each for each in workplace.recordings() if each.run_id != old.run_id]
    check_replays(workplace, new.run_id, provider, done.stdout)


def test_w3_a_splice_pays_only_for_what_a_change_affects(
    provider: Provider, workplace: Workplace, recorded: tuple[Recording, list[str]]
) -> None:
    """The call before the changed one is served; the spliced run replays identical with the new code."""
    old, printed = recorded
    same = run(workplace, "splice", old.run_id)
    assert "nothing to record again" in same.stderr
    assert provider.requests == []
    workplace.write("agent.py", AGENT.replace("LATER = SYSTEM", 'LATER = SYSTEM + " and kind"'))
    done = run(workplace, "splice", old.run_id)
    assert prompts(provider) == [("be brief and kind", "question 2"), ("be brief", "question 3")]
    assert done.stdout.splitlines()[0] == printed[0]
    (new,) = [each for each in workplace.recordings() if each.run_id != old.run_id]
    provider.stop()
    check_replays(workplace, new.run_id, provider, done.stdout)


def test_w3_effects_are_refused_unless_they_are_allowed(
    provider: Provider, workplace: Workplace, recorded: tuple[Recording, list[str]]
) -> None:
    """A fork that would pay stops there and says so; with --effects it pays, once, and its files are real."""
    old, _ = recorded
    workplace.write("agent.py", AGENT.replace('if "--pay" in sys.argv:', "if True:"))
    at = str(number_of(old, CALLS[0], 3))
    refused = run(workplace, "fork", old.run_id, "--at", at, status=4)
    assert "tool:pay has an effect (irreversible), so it was not made live" in refused.stderr
    assert not (workplace.path / "ledger").exists()
    done = run(workplace, "fork", old.run_id, "--at", at, "--effects")
    assert "paid 12" in done.stdout
    assert (workplace.path / "ledger").read_text() == "12\n"


def test_w3_code_that_differs_before_the_fork_goes_nowhere(
    provider: Provider, workplace: Workplace, recorded: tuple[Recording, list[str]]
) -> None:
    """Nothing is made live, since what is served would not be what the code asked for."""
    old, _ = recorded
    workplace.write("agent.py", AGENT.replace('"be brief"', '"be quick"'))
    done = run(workplace, "fork", old.run_id, "--at", str(number_of(old, CALLS[0], 2)), status=3)
    assert "diverged" in done.stderr
    assert provider.requests == []


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The branches of a sweep."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_w3_a_killed_sweep_goes_on(
    provider: Provider, workplace: Workplace, recorded: tuple[Recording, list[str]]
) -> None:
    """What it has done is neither done nor paid for again, not even where it was killed in the middle of a line."""
    old, _ = recorded
    at, out = str(number_of(old, CALLS[0], 3)), workplace.path / "sweep.jsonl"
    words = ["sweep", old.run_id, "--at", at, "--times", "2", "--out", "sweep.jsonl"]
    words += ["--vary", "", "--vary", "llm[3].temperature = 0"]
    sweep = subprocess.Popen(
        [str(BIN / "spanreplay"), *words, "--", str(workplace.python), "agent.py"],
        cwd=workplace.path,
        env=workplace.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert sweep.stdout is not None
    assert sweep.stdout.readline()
    sweep.kill()
    sweep.communicate()
    known = lines_of(out)
    assert 1 <= len(known) < 4
    with out.open("a") as stream:
        stream.write('{"run": "cut in the mid')
    told = run(workplace, *words, "--json")
    done = lines_of(out)
    assert [json.loads(line) for line in told.stdout.splitlines()] == done[len(known) :]
    assert done[: len(known)] == known
    assert sorted((line["variant"], line["time"]) for line in done) == [
        ("", 1), ("", 2), ("llm[3].temperature = 0", 1), ("llm[3].temperature = 0", 2),
    ]  # fmt: skip
    assert all(line["is_whole"] for line in done)
    assert len({line["live"] for line in done}) == 1
    made = len(provider.requests)
    assert made in (4, 5), "one live call for each branch, and one that was under way when the sweep was killed"
    assert run(workplace, *words).stdout == ""
    assert len(provider.requests) == made
    other = run(workplace, "sweep", old.run_id, "--at", "1", "--vary", "", "--out", "sweep.jsonl", status=1)
    assert "is of a sweep of run" in other.stderr


def test_w3_a_sweep_keeps_to_its_budget(
    provider: Provider, workplace: Workplace, recorded: tuple[Recording, list[str]]
) -> None:
    """It stops before the branch that it can't pay for, and goes on with a larger one."""
    old, _ = recorded
    at = str(number_of(old, CALLS[0], 3))
    words = ["sweep", old.run_id, "--at", at, "--vary", "", "--times", "3", "--out", "sweep.jsonl"]
    priced = ["--price", "gpt-*=1000000,0"]
    stopped = run(workplace, *words, *priced, "--max-cost", "1", status=6)
    assert "the budget of $1 is used up" in stopped.stderr
    made = len(provider.requests)
    assert made < 3
    run(workplace, *words, *priced, "--max-cost", "1000000000")
    assert lines_of(workplace.path / "sweep.jsonl")[-1]["is_whole"]
    assert made < len(provider.requests) <= 3 + made


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("fork", "--at", "99"), "has no call 99"),
        (("fork", "--at", "2", "--set", "llm[9].system = 1"), "llm[9]"),
        (("sweep", "--at", "2", "--vary", "", "--out", "nowhere/s.jsonl"), "nowhere"),
    ],
)
def test_u5_what_can_not_be_branched_is_one_line(
    provider: Provider,
    workplace: Workplace,
    recorded: tuple[Recording, list[str]],
    words: tuple[str, ...],
    part: str,
) -> None:
    """It says what, and nothing goes live."""
    done = workplace.run(words[0], "latest", *words[1:], "--", str(workplace.python), "agent.py")
    assert done.returncode in (1, 2)
    assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert provider.requests == []
