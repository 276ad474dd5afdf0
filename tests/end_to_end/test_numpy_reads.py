"""Agents that draw from numpy's generators get the recorded numbers in a replay."""

from __future__ import annotations

from support.replaying import Workplace

AGENT = """
import numpy as np
import spanreplay
from numpy.random import default_rng

@spanreplay.boundary("tool", name="score", effect="read")
def score(value):
    return f"scored {value}"

print(np.random.rand(3), np.random.randint(0, 10**6, 4), np.random.choice(10, 3), np.random.normal())
print(score(float(np.random.random())))
rng, other = np.random.default_rng(), default_rng()
print(rng.integers(0, 10**9, 5), other.standard_normal(3), rng.permutation(8))
np.random.seed()
print(np.random.permutation(8), np.random.standard_normal(2))
np.random.seed(7)
print(np.random.rand(), np.random.default_rng(7).random())
print(score(int(rng.integers(0, 10**9))))
"""


def test_s55_numpy_draws_what_it_drew(workplace: Workplace) -> None:
    """The module's generator and unseeded ones give the recorded numbers; a second recording has other numbers."""
    agent = workplace.write("agent.py", AGENT)
    first = workplace.record(agent).stdout
    run_id = workplace.recording().run_id
    replayed = workplace.replay(agent, source=run_id)
    assert (replayed.status, replayed.stdout) == (0, first), replayed.stderr
    again = workplace.record(agent).stdout.splitlines()
    differing = [before != now for before, now in zip(first.splitlines(), again, strict=True)]
    assert differing == [True, True, True, True, False, True]


def test_s55_numpy_read_once_more_is_named(workplace: Workplace) -> None:
    """Creating one more generator than recorded is a divergence."""
    agent = workplace.write("agent.py", AGENT)
    workplace.record(agent)
    workplace.write("agent.py", AGENT + "np.random.default_rng()\n")
    replayed = workplace.replay(agent)
    assert replayed.status == 3
    assert replayed.causes() == [("extra_call", "random:numpy.random.seed")]
