"""Several recordings in one test, with counts: vcrpy's multiple cassettes and play_count."""

from __future__ import annotations

import pytest

from support.nested_pytest import OURS
from support.provider import Provider

pytest_plugins = ["pytester"]

TESTS = """
import os, shutil
import groq, pytest
import spanreplay

def ask(prompt):
    with groq.Groq(max_retries=0) as client:
        answer = client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": prompt}])
    return answer.choices[0].message.content

@pytest.mark.skipif("RECORD" not in os.environ, reason="they are there")
@pytest.mark.parametrize("name", ["first", "second"])
def test_record(name):
    with spanreplay.record(directory=name) as block:
        print("said", name, ask("the same"))
        ask(f"of the {name}")
    shutil.copy(block.path, f"{name}.replay")

def played(block):
    return block.verdict()["counts"]["served"]

def test_both():
    said = {}
    for name in ("second", "first"):
        with spanreplay.replay(f"{name}.replay") as block:
            said[name] = ask("the same")
            assert played(block) == 1
            ask(f"of the {name}")
        assert (played(block), block.verdict()["verdict"]) == (2, "identical")
    assert said["first"] != said["second"]
    for name in said:
        print("said", name, said[name])

def test_of_the_other():
    with pytest.raises(spanreplay.ReplayMiss):
        with spanreplay.replay("first.replay") as block:
            ask("of the second")
    assert played(block) == 0

def test_played_once():
    with pytest.raises(spanreplay.ReplayMiss):
        with spanreplay.replay("first.replay") as block:
            for _ in range(2):
                ask("the same")
    assert played(block) == 1

@pytest.mark.replay("second.replay")
def test_by_mark(replay_session):
    assert replay_session.served == 0
    ask("the same")
    assert replay_session.served == 1
    with pytest.raises(AssertionError):
        assert replay_session.served == 2
    ask("of the second")
    assert replay_session.served == 2
"""


def test_s5_one_test_plays_several_recordings_and_counts(
    pytester: pytest.Pytester, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block of a test plays its own recording, each call once, and says how many were played."""
    pytester.makepyfile(TESTS)
    with monkeypatch.context() as patch:
        patch.setenv("RECORD", "1")
        recorded = pytester.runpytest_subprocess(*OURS, "-s", "-k", "test_record", timeout=600)
    recorded.assert_outcomes(passed=2, deselected=4)
    provider.stop()
    replayed = pytester.runpytest_subprocess(*OURS, "-s", timeout=600)
    replayed.assert_outcomes(passed=4, skipped=2)
    said = [[line for line in each.outlines if "said " in line] for each in (recorded, replayed)]
    assert len(said[0]) == 2
    assert {line.partition("said ")[2] for line in said[0]} == {line.partition("said ")[2] for line in said[1]}
