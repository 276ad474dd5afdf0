"""Sets of strings are ordered by hash: a recorded run states the seed, and a replay sets it again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.replaying import BIN, TIMEOUT_S, Workplace
from support.seeding import WHY, can_seed

AGENT = """
import spanreplay

@spanreplay.boundary("tool", name="ask")
def ask(question):
    return question.upper()

print(ask(" ".join({f"colour{number}" for number in range(12)})))
"""


def test_n2_recorded_command_and_its_replay_have_the_same_sets(tmp_path: Path) -> None:
    """`spanreplay record` chooses and states a seed, and `spanreplay replay` starts the agent with it."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", AGENT)
    command = [str(BIN / "spanreplay"), "record", "--", str(workplace.python), str(agent)]
    recorded = subprocess.run(
        command,
        cwd=tmp_path,
        env=workplace.environ,
        text=True,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    seed = workplace.recording().root.env["hash_seed"]
    assert int(seed) > 0
    replayed = workplace.replay(agent)
    assert replayed.status == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout


@pytest.mark.skipif(not can_seed(), reason=WHY)
def test_n2_a_process_that_drew_its_seed_and_its_replay_have_the_same_sets(tmp_path: Path) -> None:
    """This holds also if Python seeded its hashes itself: the recording holds the seed."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", AGENT + "print(hash('alpha'))")
    printed = set()
    for _ in range(3):
        recorded = workplace.record(agent)
        printed.add(recorded.stdout)
        assert workplace.recordings()[-1].root.env["hash_seed"] == "random"
        replayed = workplace.replay(agent)
        assert replayed.status == 0, replayed.stderr
        assert replayed.stdout == recorded.stdout
    assert len(printed) == 3  # hashes out of 2^64 possible ones


@pytest.mark.parametrize("way", ["no key", "not sealed", "PYTHONHASHSEED"])
def test_n2_other_order_of_a_set_is_named_as_what_may_have_caused_a_divergence(way: str, tmp_path: Path) -> None:
    """If the hashes can't be restored, a call whose words are in another order names that as a possible cause."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", AGENT)
    workplace.record(agent, SPANREPLAY_SEAL="false" if way == "not sealed" else "true")
    assert workplace.recording().root.env["hash_seed"] == "random"
    here = {"PYTHONHASHSEED": "7"} if way == "PYTHONHASHSEED" else {}
    if way == "no key":
        (tmp_path / ".spanreplay/redact.key").unlink()
    replayed = workplace.replay(agent, **here)  # the recorded order is one of 12! orders
    assert replayed.causes() == [("changed_call", "tool:ask")]
    causes = {cause["kind"]: cause["evidence"] for cause in replayed.verdict["divergences"][0]["causes"]}
    said = {"no key": "redaction key is not here", "not sealed": "does not hold the seed", "PYTHONHASHSEED": "unset it"}
    assert said[way] in causes["hash_seed"]
