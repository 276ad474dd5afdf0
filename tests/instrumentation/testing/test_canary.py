"""Canaries: with `--replay-mode=canary` the models of marked tests run live, and their answers are compared."""

from __future__ import annotations

import json
from typing import Final

import pytest

from support.nested_pytest import OURS
from support.provider import Provider

pytest_plugins = ["pytester"]

AGENT: Final = """
import json, os
import groq, pytest, spanreplay
from spanreplay.testing import assert_judge

TOOL = {"type": "function", "function": {"name": "refund", "parameters": {"type": "object", "properties": {}}}}

def ask(messages, **more):
    with groq.Groq(max_retries=0) as client:
        return client.chat.completions.create(model="gpt-4o", messages=messages, **more).choices[0].message

@spanreplay.boundary("tool")
def refund(order):
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(f"refunded {order}\\n")

def run_agent():
    asked = ask([{"role": "user", "content": 'use tool refund with {"order": 17}'}], tools=[TOOL])
    for call in asked.tool_calls:
        refund(**json.loads(call.function.arguments))
    return ask([{"role": "user", "content": "tell the customer"}]).content

@pytest.mark.canary
@pytest.mark.replay
def test_watched():
    run_agent()

@pytest.mark.replay
def test_not_watched():
    run_agent()
"""
JUDGED: Final = """
@pytest.fixture
def canary_judge():
    return lambda prompt: json.dumps({"verdict": os.environ["VERDICT"], "reason": "seen " + str("customer" in prompt)})
"""
SELF_JUDGED: Final = """
def judge(prompt):
    return json.dumps({"verdict": "pass", "reason": ask([{"role": "user", "content": prompt}]).content})

@pytest.mark.canary
@pytest.mark.replay
def test_judges_itself():
    answer = ask([{"role": "user", "content": 'say {"text": "done"}'}]).content
    assert_judge(answer, "says that it is done", judge=judge)
"""


@pytest.fixture
def repeatable(provider: Provider) -> Provider:
    """A provider whose model gives the same answer to the same request, until its weights are swapped."""
    provider.is_repeatable = True
    return provider


def _run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(*OURS, *args, timeout=600)


def _record(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, agent: str) -> None:
    monkeypatch.setenv("LEDGER", str(pytester.path / "ledger"))
    pytester.makepyfile(agent)
    _run(pytester, "--replay-mode=record").assert_outcomes(passed=2)
    (pytester.path / "ledger").unlink()


def test_s39_s40_swapped_weights_fail_the_canary_and_not_the_suite(
    pytester: pytest.Pytester, repeatable: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary passes until the provider's model changes; the replay suite is green before and after."""
    _record(pytester, monkeypatch, AGENT)
    repeatable.requests.clear()
    monkeypatch.setenv("CI", "true")  # a scheduled job is one too
    night = _run(pytester, "-m", "canary", "--replay-mode=canary")
    night.assert_outcomes(passed=1, deselected=1)
    assert len(repeatable.requests) == 2
    repeatable.is_repeatable, repeatable.fingerprint = False, "fp_other_weights"
    next_night = _run(pytester, "-m", "canary", "--replay-mode=canary")
    next_night.assert_outcomes(failed=1, deselected=1)
    assert next_night.ret == pytest.ExitCode.TESTS_FAILED
    next_night.stdout.fnmatch_lines(
        ["*canary: the models behave differently*", "*call 3: the model answers differently: recorded*now*"]
    )
    assert len(repeatable.requests) == 4
    repeatable.stop()
    _run(pytester).assert_outcomes(passed=2)
    _run(pytester, "-m", "not canary").assert_outcomes(passed=1, deselected=1)
    assert not (pytester.path / "ledger").exists()  # tools are never run


@pytest.mark.parametrize(("verdict", "outcome"), [("pass", "passed"), ("fail", "failed"), ("unsure", "failed")])
@pytest.mark.sampled(2)
def test_s39_a_judge_decides_about_other_answers(
    pytester: pytest.Pytester, repeatable: Provider, monkeypatch: pytest.MonkeyPatch, verdict: str, outcome: str
) -> None:
    """Another answer passes if the judge accepts it; if it says no or abstains, the canary fails with its reason."""
    _record(pytester, monkeypatch, AGENT + JUDGED)
    repeatable.is_repeatable = False
    monkeypatch.setenv("VERDICT", verdict)
    result = _run(pytester, "-m", "canary", "--replay-mode=canary", "--replay-strict")
    result.assert_outcomes(**{outcome: 1}, deselected=1, warnings=int(verdict == "pass"))
    if verdict != "pass":
        word = {"fail": "fail", "unsure": "abstain"}[verdict]
        result.stdout.fnmatch_lines([f"*call 3: the judge says {word} (seen True): recorded*"])


def test_s39_no_judge_is_asked_about_another_tool(
    pytester: pytest.Pytester, repeatable: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that asks for other arguments fails the canary: the call is neither run nor left to a judge."""
    _record(pytester, monkeypatch, AGENT + JUDGED)
    monkeypatch.setenv("VERDICT", "pass")
    repeatable.is_repeatable = False
    repeatable.script.append("use tool refund with " + json.dumps({"order": 18}))
    result = _run(pytester, "-m", "canary", "--replay-mode=canary")
    result.assert_outcomes(failed=1, deselected=1)
    result.stdout.fnmatch_lines(["*recorded*17*", "*now*18*"])
    assert not (pytester.path / "ledger").exists()


def test_s39_a_judge_in_the_test_may_word_its_answer_differently(
    pytester: pytest.Pytester, repeatable: Provider
) -> None:
    """The calls of a test's own judge run live in a canary too; what counts is its verdict, not its words."""
    pytester.makepyfile(AGENT.partition("@pytest.mark.canary")[0] + SELF_JUDGED)
    _run(pytester, "--replay-mode=record").assert_outcomes(passed=1)
    repeatable.is_repeatable = False
    _run(pytester, "--replay-mode=canary").assert_outcomes(passed=1)
    assert len(repeatable.requests) == 4
