"""Random programs with threads, streams, cancellation, queues and locks observe the same in a replay.

SPANREPLAY_TEST_PROGRAMS says how many are tried.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from spanreplay.model.call import Recording
from support.in_process import Replayed, recorded, replayed
from support.program_steps import KINDS, THREAD_KINDS, Step
from support.programs import ALL, CORE, UNIT_S, World, build, random_program, run_instantly

PROGRAMS = int(os.environ.get("SPANREPLAY_TEST_PROGRAMS", "60"))
REAL_UNIT_S = 0.0005
"""One unit of delay where a program is recorded in real time."""


def _draw(seed: int, kinds: tuple[str, ...]) -> tuple[list[Step], bool]:
    rng = random.Random(seed)
    return [*random_program(rng, 1, kinds), ("ask", 0.5)], rng.random() < 0.2


def _insist(recording: Recording, world: World, program: list[Step], is_eager: bool, unit_s: float) -> None:
    again = World(random.Random(0))
    outcome: Replayed = replayed(build(program, again, unit_s, is_eager=is_eager), recording)
    assert outcome.error is None
    assert again.observed == world.observed
    assert again.bodies == 0
    assert outcome.kinds() == []
    assert outcome.session.gate.skipped == []


def _try_on_an_instant_loop(seed: int, kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    program, is_eager = _draw(seed, kinds)
    world, turns = World(random.Random(seed)), random.Random(f"turns {seed}")
    share = turns.choice([0, 0.01, 0.05, 0.2, 0.6])

    def turn_s() -> float:
        return turns.expovariate(1) * share * UNIT_S

    def main() -> Any:
        return run_instantly(build(program, world, is_eager=is_eager), monkeypatch, turn_s)

    _insist(recorded(main), world, program, is_eager, UNIT_S)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_n2_program_of_every_kind_observes_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded on a loop with exact times and a CPU of any speed: same answers in the same order, no body run."""
    _try_on_an_instant_loop(seed, ALL, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(PROGRAMS // 4))
def test_n2_program_recorded_in_real_time_observes_the_same(seed: int) -> None:
    """Recorded in real time, with races of half a millisecond: same answers in the same order, no body run."""
    program, is_eager = _draw(seed, ALL)
    world = World(random.Random(seed))
    recording = recorded(build(program, world, REAL_UNIT_S, is_eager=is_eager))
    _insist(recording, world, program, is_eager, REAL_UNIT_S)


@pytest.mark.parametrize("kind", [*CORE, *KINDS, *THREAD_KINDS])
def test_n2_kind_of_step_observes_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of step alone: threads, pools, streams, cancellation, queues, locks, retries."""
    for seed in range(3):
        _try_on_an_instant_loop(seed, (kind,), monkeypatch)


@pytest.mark.parametrize("seed", [248, 288, 949])
def test_n2_timer_that_is_cancelled_when_it_is_due_is_no_step(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer callback that is cancelled after it was queued in the loop is not counted as a callback run."""
    program = [*random_program(random.Random(seed)), ("ask", 0.5)]
    world, turns = World(random.Random(seed)), random.Random(f"turns {seed}")
    share = turns.choice([0.01, 0.05, 0.2, 0.6])
    recording = recorded(
        lambda: run_instantly(build(program, world), monkeypatch, lambda: turns.expovariate(1) * share * UNIT_S)
    )
    _insist(recording, world, program, False, UNIT_S)


@pytest.mark.parametrize("seed", [2176])
def test_n2_deadline_that_has_passed_already_when_it_is_set_does_so_again(seed: int) -> None:
    """A timeout of two microseconds has expired before `asyncio.timeout` sets its timer."""
    test_n2_program_recorded_in_real_time_observes_the_same(seed)
