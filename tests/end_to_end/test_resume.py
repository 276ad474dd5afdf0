"""Runs that wait for a human: suspended or killed, answered a day later, continued in another process."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest

from spanreplay.model.call import Recording
from spanreplay_service.server import ServerSettings
from support.memory_store import MemoryStore
from support.provider import Provider
from support.replaying import BIN, TIMEOUT_S, Workplace
from support.service import serve

MONDAY, TUESDAY = "1790000000", "1790086400"
AGENT = """
import asyncio, os, random, sys, time
import spanreplay
from groq import AsyncGroq

client = AsyncGroq(max_retries=0)

async def ask(text):
    messages = [{"role": "user", "content": text}]
    done = await client.chat.completions.create(model="gpt-x", messages=messages)
    return done.choices[0].message.content

async def tell(text):
    messages = [{"role": "user", "content": text}]
    stream = await client.chat.completions.create(model="gpt-x", messages=messages, stream=True)
    return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

@spanreplay.boundary("tool", name="fetch", effect="read")
async def fetch(n):
    await asyncio.sleep(random.random() / 50)
    return f"page {n} of {random.random()}"

@spanreplay.boundary("tool", name="now", effect="read")
def now():
    return float(os.environ["NOW"])

@spanreplay.boundary("tool", name="pay", effect="irreversible")
def pay(amount):
    with open("ledger", "a") as ledger:
        ledger.write(f"{amount}\\n")
    return f"paid {amount}"

async def main():
    token = random.random()
    for task in asyncio.as_completed([fetch(n) for n in range(4)]):
        print(await task)
    for n in range(4):
        print(await ask(f"question {n}"))
    for n in range(7):
        print(now(), pay(n))
    print(await tell("what next?"), token)
    answer = input("Approve? ")
    started = time.monotonic()
    await asyncio.sleep(0.05)
    assert time.monotonic() - started >= 0.05
    print(answer, now(), random.random() != token)
    print(await tell(f"the human said {answer}"))
    print(pay(99), len(sys.argv))

asyncio.run(main())
"""
REFACTORED = (
    AGENT.replace("now()", "current_time()")
    .replace("async def main():", "def report(*words):\n    print(*words)\n\nasync def main():")
    .replace("    for n in range(7):\n        print(now", "    n = 0\n    while n < 7:\n        report(now")
    .replace("        print(current_time(), pay(n))", "        report(current_time(), pay(n))\n        n += 1")
    .replace("for n in range(7):", "for n in list(range(7)):")
)
BEFORE = 23
"""Calls before the question: four tools at once, four models, two tools seven times, one more model call."""


def resume(
    workplace: Workplace, *options: str, command: tuple[str, ...] = (), stdin: Any = subprocess.DEVNULL, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run `spanreplay resume` until it ends."""
    behind = ["--", *command] if command else []
    return subprocess.run(
        [str(BIN / "spanreplay"), "resume", *options, *behind],
        cwd=workplace.path,
        env={**workplace.environ, **environ},
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def suspend(workplace: Workplace, source: str = AGENT, **environ: str) -> subprocess.CompletedProcess[str]:
    """Record an agent until it waits for a human."""
    workplace.write("agent.py", source)
    return subprocess.run(
        [str(BIN / "opentelemetry-instrument"), str(workplace.python), "agent.py"],
        cwd=workplace.path,
        env={**workplace.environ, "SPANREPLAY_HUMAN": "suspend", "NOW": MONDAY, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def assert_gone_on(workplace: Workplace, old: Recording, printed: str, done: Any, provider: Provider) -> None:
    """Assert that the run continued: earlier output is the same, one model call was made, and it replays."""
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(printed), done.stdout
    lines = done.stdout.removeprefix(printed).splitlines()
    assert lines[0] == f"yes {float(TUESDAY)} True"
    assert lines[2] == "paid 99 1"
    assert (workplace.path / "ledger").read_text().split() == [*map(str, range(7)), "99"]
    ((_, body),) = provider.requests
    assert body["messages"] == [{"role": "user", "content": "the human said yes"}]
    new = workplace.recordings()[-1]
    assert new.completeness().is_complete, new.completeness().reasons
    assert new.root.env["resumes"] == old.run_id
    assert len(new.calls) == BEFORE + 4
    provider.stop()
    again = workplace.replay("agent.py", source=new.run_id)
    assert (again.status, again.stdout) == (0, done.stdout), again.stderr
    assert again.verdict["counts"]["exact"] == len(new.calls)


@pytest.mark.parametrize("source", [AGENT, REFACTORED], ids=["same code", "refactored"])
@pytest.mark.parametrize("place", ["directory", "file", "service"])
@pytest.mark.sampled(3)
def test_s67_suspended_run_goes_on_a_day_later(
    place: str, source: str, provider: Provider, workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """23 calls are served without paying again; the answer is fed in, the run continues live and is recorded whole."""
    waiting = suspend(workplace)
    assert waiting.returncode == 7, waiting.stderr
    old = workplace.recording()
    assert f"hint: spanreplay resume {old.run_id} --input ANSWER" in waiting.stderr
    reasons = old.completeness().reasons
    assert len(reasons) == 1
    assert "which waits for an answer to 'Approve? '" in reasons[0]
    assert len(old.calls) == BEFORE + 1
    workplace.write("agent.py", source)
    provider.requests.clear()
    if place == "directory":
        done = resume(workplace, old.run_id, "--input", "yes", NOW=TUESDAY)
        assert_gone_on(workplace, old, waiting.stdout, done, provider)
        return
    file = tmp_path_factory.mktemp("elsewhere") / "run.replay"
    exported = ["export", old.run_id, "-o", str(file)]
    subprocess.run([str(BIN / "spanreplay"), *exported], cwd=workplace.path, env=workplace.environ, check=True)
    if place == "file":
        done = resume(workplace, str(file), "--input", "yes", NOW=TUESDAY)
        assert_gone_on(workplace, old, waiting.stdout, done, provider)
        return
    with serve(MemoryStore(), ServerSettings(port=0)) as server:
        there = {**workplace.environ, "SPANREPLAY_ENDPOINT": server.address}
        subprocess.run([str(BIN / "spanreplay"), "import", str(file)], cwd=workplace.path, env=there, check=True)
        done = resume(workplace, old.run_id[:14], "--input", "yes", NOW=TUESDAY, SPANREPLAY_ENDPOINT=server.address)
        assert_gone_on(workplace, old, waiting.stdout, done, provider)


def test_s67_run_killed_while_it_waits_goes_on(provider: Provider, workplace: Workplace) -> None:
    """A process killed while waiting at a terminal loses nothing: another process takes the answer."""
    workplace.write("agent.py", AGENT)
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [str(BIN / "opentelemetry-instrument"), str(workplace.python), "-u", "agent.py"],
            cwd=workplace.path,
            env={**workplace.environ, "NOW": MONDAY},
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        printed = ""
        while not printed.endswith("Approve? "):
            printed += process.stdout.read(1)
        process.kill()
        process.wait(TIMEOUT_S)
        process.stdout.close()
    finally:
        os.close(ours)
        os.close(theirs)
    old = workplace.recording()
    assert not old.root.manifest
    assert [c.kind for c in old.calls if c.outcome == "open"] == ["human"]
    provider.requests.clear()
    done = resume(workplace, "latest", "--input", "yes", NOW=TUESDAY)
    assert_gone_on(workplace, old, printed, done, provider)


def test_n17_changed_code_is_found_before_anything_is_live(provider: Provider, workplace: Workplace) -> None:
    """Code that makes another call before the question is stopped with exit 3: no request, no effect, no new run."""
    suspend(workplace)
    provider.requests.clear()
    ledger = (workplace.path / "ledger").read_text()
    changes = {
        "changed_call": AGENT.replace('"what next?"', '"what now?"'),
        "extra_call": AGENT.replace("    answer = input", "    pay(7)\n    answer = input"),
        "missing_call": AGENT.replace("range(7)", "range(6)"),
    }
    for kind, source in changes.items():
        workplace.write("agent.py", source)
        done = resume(workplace, "latest", "--input", "yes", "--json", "verdict.json", NOW=TUESDAY)
        verdict = json.loads((workplace.path / "verdict.json").read_text())
        assert (done.returncode, verdict["verdict"]) == (3, "diverged"), done.stderr
        assert verdict["divergences"][0]["kind"] == kind
        assert (workplace.path / "ledger").read_text() == ledger
    assert provider.requests == []
    assert len(workplace.recordings()) == 1


TWICE = """
import spanreplay
name = spanreplay.human.input("Name? ", choices=("ann", "bob"))
print("hello", name)
print("and", input("Age? "))
"""


def test_s67_run_that_waits_twice_is_suspended_twice(workplace: Workplace) -> None:
    """Each answer leads to the next question; `latest` is the second suspended run."""
    assert suspend(workplace, TWICE).returncode == 7
    wrong = resume(workplace, "latest", "--input", "eve")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "'eve' is not a valid answer to 'Name? '" in wrong.stderr
    second = resume(workplace, "latest", "--input", "ann", SPANREPLAY_HUMAN="suspend")
    assert (second.returncode, second.stdout) == (7, "Name? hello ann\nAge? "), second.stderr
    assert len(workplace.recordings()) == 2
    third = resume(workplace, "latest", "--input", "41")
    assert (third.returncode, third.stdout) == (0, "Name? hello ann\nAge? and 41\n"), third.stderr
    ended = resume(workplace, "latest", "--input", "41")
    assert ended.returncode == 1
    assert "has ended: there is nothing to resume" in ended.stderr


def test_s67_missing_answer_is_asked_for(workplace: Workplace) -> None:
    """Without --input nothing is started, and the question is printed."""
    suspend(workplace, TWICE)
    done = resume(workplace, "latest")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the run is waiting for an answer to 'Name? '" in done.stderr


CRASHES = """
import os, pathlib, sys
import spanreplay

@spanreplay.boundary("tool", name="pay", effect="irreversible")
def pay(n):
    with open("ledger", "a") as ledger:
        ledger.write(f"{n}\\n")
    if n == 2 and not pathlib.Path("calm").exists():
        os.kill(os.getpid(), 9)
    return n

for n in range(4):
    print(pay(n), flush=True)
"""


def test_s67_unfinished_effect_is_not_made_again_unless_told(workplace: Workplace) -> None:
    """A run killed inside an irreversible call continues only with --redo, and doesn't repeat the finished calls."""
    workplace.write("agent.py", CRASHES)
    process = workplace.spawn([str(workplace.python), "agent.py"])
    process.communicate(timeout=TIMEOUT_S)
    (workplace.path / "calm").touch()
    ledger = workplace.path / "ledger"
    refused = resume(workplace, "latest")
    assert refused.returncode == 4, refused.stderr
    assert "its outcome is unknown" in refused.stderr
    assert ledger.read_text().split() == ["0", "1", "2"]
    done = resume(workplace, "latest", "--redo")
    assert (done.returncode, done.stdout.split()) == (0, ["0", "1", "2", "3"]), done.stderr
    assert ledger.read_text().split() == ["0", "1", "2", "2", "3"]


def test_s67_agent_that_may_ask_goes_on_asking(workplace: Workplace, tmp_path: Path) -> None:
    """By default a question is read from standard input as usual; nothing is suspended."""
    workplace.write("agent.py", TWICE)
    done = subprocess.run(
        [str(BIN / "opentelemetry-instrument"), str(workplace.python), "agent.py"],
        cwd=workplace.path,
        env=workplace.environ,
        input="eve\nbob\n7\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert done.stdout == "Name? Name? hello bob\nAge? and 7\n"
    assert workplace.replay("agent.py").verdict["verdict"] in ("identical", "diverged")
