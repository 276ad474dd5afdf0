"""`@given(spanreplay.perturbations(run))` in a user's own test finds a broken invariant and its smallest change."""

from __future__ import annotations

import subprocess

import pytest

from support.nested_pytest import OURS_AND_RUNNERS
from support.provider import Provider
from support.replaying import Workplace

AGENT = """
import os
import httpx
import spanreplay

@spanreplay.boundary("tool", effect="read")
def order(number):
    return {"paid": 80, "items": [{"price": 50}, {"price": 30}], "currency": "EUR"}

def refund():
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "refund order 7"}]}
    answer = httpx.post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json=body)
    assert answer.json()["choices"]
    found = order(7)
    total = sum(item["price"] for item in found["items"])
    return total, found["paid"]

if __name__ == "__main__":
    with spanreplay.record() as recorded:
        refund()
    recorded.save("refund.replay")
"""
TEST = """
import spanreplay
from agent import refund
from hypothesis import given, seed, settings

@seed(7)
@settings(deadline=None, max_examples=200, database=None)
@given(spanreplay.perturbations("refund.replay", only="tool:*", kinds=["value", "list"]))
def test_never_refunds_more_than_was_paid(plan):
    with spanreplay.replay("refund.replay", plan=plan):
        total, paid = refund()
    assert total <= paid
"""


@pytest.mark.slow
def test_s38_given_finds_a_broken_invariant(provider: Provider, workplace: Workplace) -> None:
    """Hypothesis reports the one field whose smallest change breaks the invariant, as a plan that can be pasted."""
    workplace.write("agent.py", AGENT)
    workplace.write("test_refund.py", TEST)
    done = _run(workplace, str(workplace.python), "agent.py")
    assert done.returncode == 0, done.stderr
    provider.stop()
    suite = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *OURS_AND_RUNNERS, "test_refund.py")
    done = _run(workplace, str(workplace.python), *suite)
    assert done.returncode == 1, done.stdout
    assert "assert 80 <= 79" in done.stdout
    assert "plan=Plan().changed('serve').set('tool:order[1].response.paid = 79')" in done.stdout


def _run(workplace: Workplace, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=workplace.path, env=workplace.environ, capture_output=True, text=True, check=False)
