"""`spanreplay promote`: an incident becomes a test that fails on the bad code and passes on the fix."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from spanreplay.testing.promoted import is_made
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.repository import commit
from support.units import CHAT, COMMAND, path_of, serve

AGENT: Final = """
import spanreplay
from groq import Groq
from rules import may_trade

@spanreplay.boundary("tool", effect="read")
def find_price(what):
    return 190

@spanreplay.boundary("tool", effect="irreversible")
def place_order(notional):
    return {"state": "filled", "notional": notional}

def ask(text):
    made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

print(ask("shall I trade?"))
notional = find_price("shares") * 1000
print(place_order(notional) if may_trade(notional) else "refused")
"""
BAD, FIXED = "def may_trade(notional):\n    return True\n", "def may_trade(notional):\n    return notional < 10_000\n"
CALL: Final = 3
"""The call number of `place_order`."""


@pytest.fixture
def incident(provider: Provider, tmp_path: Path) -> tuple[Workplace, str, str]:
    """A recorded order that should not have been placed, the commit that placed it, and the commit with the fix."""
    workplace = Workplace(tmp_path, provider.environ())
    workplace.write("agent.py", AGENT)
    workplace.write("rules.py", BAD)
    bad = commit(tmp_path, "trade")
    workplace.record("agent.py")
    provider.stop()
    workplace.write("rules.py", FIXED)
    return workplace, bad, commit(tmp_path, "a limit")


def _promote(workplace: Workplace, *options: str) -> subprocess.CompletedProcess[str]:
    words = ("promote", "latest", "--never", str(CALL), *options, "--", str(workplace.python), "agent.py")
    return workplace.run(*words)


def _pytest(workplace: Workplace, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(workplace.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=workplace.path,
        env={
            **{name: value for name, value in workplace.environ.items() if not name.startswith("OPENAI")},
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # a user has a few plugins, all frameworks together dozens
        },
        text=True,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_s4_s49_n11_the_test_fails_on_the_bad_commit_and_passes_on_the_fix(
    incident: tuple[Workplace, str, str],
) -> None:
    """It is checked at both commits, needs no key, model or local path, and doesn't pass for the wrong reason."""
    workplace, bad, fixed = incident
    done = _promote(workplace, "--bad", bad, "--good", fixed, "--json")
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    test, recording = (workplace.path / name for name in made["files"])
    assert recording.parent == test.parent == workplace.path / "tests" / "incidents"
    assert str(workplace.path) not in test.read_text()
    assert made["instead"][0] != ""
    passed = _pytest(workplace, str(test))
    assert passed.returncode == 0, passed.stdout
    workplace.write("rules.py", FIXED + "\nLIMIT = 10_000  # a benign change\n")
    workplace.write("agent.py", AGENT.replace("def ask(text)", "def ask(text, again=0)"))
    passed = _pytest(workplace, str(test))
    assert passed.returncode == 0, passed.stdout
    workplace.write("agent.py", AGENT.replace("shall I trade?", "May I trade?"))
    hidden = _pytest(workplace, str(test))  # it never reaches its call, and doesn't pass because of that
    assert hidden.returncode == 1, hidden.stdout
    assert f"the run goes another way before it comes to call {CALL}: changed_call at call 1" in hidden.stdout
    workplace.write("agent.py", AGENT)
    workplace.write("rules.py", BAD)
    failed = _pytest(workplace, str(test))
    assert failed.returncode == 1, failed.stdout
    assert f"call {CALL} is made again, as in the recorded run" in failed.stdout


def test_s4_s49_what_would_prove_nothing_is_not_written(incident: tuple[Workplace, str, str]) -> None:
    """Refused: a bad commit without the call, a fix that makes it, a missing call, an invalid test name."""
    workplace, bad, fixed = incident
    workplace.write("rules.py", BAD)
    for options, said in (
        (("--bad", fixed), f"call {CALL} is not made at {fixed[:10]}"),
        ((), f"call {CALL} is made at the working tree too"),
        (("--good", bad), f"call {CALL} is made at {bad[:10]} too"),
        (("--never", "99"), "has no call 99"),
        (("--name", "../x"), "is not a valid name for a test"),
    ):
        done = _promote(workplace, *options)
        assert done.returncode == 1, done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert not (workplace.path / "tests").exists()


@pytest.mark.parametrize(
    ("found", "is_it"),
    [
        ({}, True),
        ({"divergences": [{"kind": "moved", "recorded_span_id": "a", "call": 3}]}, True),
        ({"divergences": [{"kind": "ambiguous", "recorded_span_id": "a"}]}, True),
        ({"divergences": [{"kind": "extra_call", "call": 3}]}, True),
        ({"divergences": [{"kind": "missing_call", "recorded_span_id": "a"}]}, False),
        ({"divergences": [{"kind": "changed_call", "recorded_span_id": "a"}]}, False),
        ({"verdict": "incomplete"}, None),
        ({"divergences": [], "divergences_total": 9}, None),
    ],
    ids=str,
)
def test_s49_a_call_that_only_moved_is_made(found: dict[str, Any], is_it: bool | None) -> None:
    """Only a call that wasn't made, or had another request, is gone; an undecidable case raises an error."""
    if is_it is None:
        with pytest.raises(RuntimeError):
            is_made(found, "a")
    else:
        assert is_made(found, "a") is is_it


def test_s4_s49_a_fix_that_only_moves_the_call_is_refused(incident: tuple[Workplace, str, str]) -> None:
    """The order is placed all the same, before the price lookup."""
    workplace, bad, _ = incident
    moved = AGENT.replace('notional = find_price("shares") * 1000\n', "notional = 190_000\n") + 'find_price("shares")\n'
    workplace.write("agent.py", moved)
    workplace.write("rules.py", BAD)
    done = _promote(workplace, "--bad", bad)
    assert done.returncode == 1
    assert f"call {CALL} is made at the working tree too" in done.stderr
    assert not (workplace.path / "tests").exists()


def test_s49_a_request_of_a_service_is_promoted(provider: Provider, tmp_path: Path) -> None:
    """The run of its process is included, because the request's replay starts from it."""
    workplace = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    workplace.write("app.py", CHAT)
    commit(tmp_path, "chat")
    with serve(workplace, command=COMMAND) as server:
        httpx.post(f"{server.url}/chat", json={"text": "hello"}, timeout=TIMEOUT_S)
        server.await_ends()
        server.stop()
    provider.stop()
    unit = next(each for each in server.units() if path_of(each) == "/chat")
    asked = next(each.number for each in unit.calls if each.kind == "llm")
    workplace.write("app.py", CHAT.replace('reply = await ask((await request.json())["text"])', 'reply = "no"'))
    words = ("promote", unit.run_id, "--never", str(asked), "--json", "--", str(workplace.python), *COMMAND)
    done = workplace.run(*words)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["files"]) == 3
    passed = _pytest(workplace, "tests")
    assert passed.returncode == 0, passed.stdout


RIGHT: Final = """
import spanreplay
from groq import Groq
from rules import round_price

@spanreplay.boundary("tool", effect="read")
def find_price(what):
    return 190

made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": "hello"}])
print(made.choices[0].message.content, round_price(find_price("shares")))
"""
ROUND: Final = "def round_price(price):\n    return price\n"


def _same(workplace: Workplace, *options: str) -> subprocess.CompletedProcess[str]:
    return workplace.run("promote", "latest", "--same", *options, "--", str(workplace.python), "agent.py")


def test_n11_a_run_that_was_right_becomes_a_test_that_passes_on_both_commits(
    provider: Provider, tmp_path: Path
) -> None:
    """The replay is identical at both commits before the test is written; it fails as soon as the run changes."""
    workplace = Workplace(tmp_path, provider.environ())
    workplace.write("agent.py", RIGHT)
    workplace.write("rules.py", ROUND)
    before = commit(tmp_path, "a price")
    workplace.record("agent.py")
    provider.stop()
    workplace.write("rules.py", "# exact\n" + ROUND.replace("return price", "return int(price)"))
    after = commit(tmp_path, "an exact price")
    workplace.write("rules.py", ROUND.replace("return price", "return price + 1"))
    wrong = commit(tmp_path, "a wrong price")

    for options, where in (
        (("--bad", before, "--good", wrong), wrong[:10]),
        (("--bad", wrong, "--good", before), wrong[:10]),
        (("--bad", before), "the working tree"),
    ):
        refused = _same(workplace, *options)
        assert refused.returncode == 1, refused.stderr
        assert f"the run is not identical at {where}, so a test would fail there" in refused.stderr
        assert "standard output differs" in refused.stderr
    assert not (tmp_path / "tests").exists()

    done = _same(workplace, "--bad", before, "--good", after, "--json")
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stderr.splitlines()[:2]] == [
        [before[:10], "identical"],
        [after[:10], "identical"],
    ]
    made: dict[str, Any] = json.loads(done.stdout)
    assert made["same"] is True
    test, recording = (tmp_path / name for name in made["files"])
    assert (test.parent, recording.parent) == (tmp_path / "tests" / "incidents",) * 2
    assert str(tmp_path) not in test.read_text()
    failed = _pytest(workplace, str(test))
    assert failed.returncode == 1, failed.stdout
    assert "which was right, is diverged now: the process's standard output differs" in failed.stdout
    workplace.write("rules.py", "# a benign change\n" + ROUND)
    passed = _pytest(workplace, str(test))
    assert passed.returncode == 0, passed.stdout


def test_n11_a_promotion_says_which_kind_it_is(incident: tuple[Workplace, str, str]) -> None:
    """Neither a wrong call nor --same, or both, is a usage error: nothing is promoted by accident."""
    workplace, _, _ = incident
    for options in ((), ("--same", "--never", str(CALL))):
        done = workplace.run("promote", "latest", *options, "--", str(workplace.python), "agent.py")
        assert done.returncode == 2
        assert "--never N" in done.stderr
    assert not (workplace.path / "tests").exists()
