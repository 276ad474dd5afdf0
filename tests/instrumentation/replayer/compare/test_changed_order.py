"""Two steps of a random program of tasks, threads and jobs change places, and no verdict calls that identical."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from support.changed import load, record_agent, replay_agent
from support.lane_programs import exchange, random_program, write
from support.sampling import IS_WHOLE

PROGRAMS = int(os.environ.get("SPANREPLAY_TEST_EFFECTS", "40" if IS_WHOLE else "15"))
EXCHANGES = 3


@pytest.mark.parametrize("level", ["calls", "full"])
def test_s60_s28_no_changed_order_is_called_identical(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call is as recorded. The unchanged program is identical, whatever overlaps in it."""
    seed = int(os.environ.get("SPANREPLAY_TEST_SEED", "31"))
    monkeypatch.setenv("SPANREPLAY_LEVEL", level)
    for number in range(PROGRAMS):
        rng = random.Random(seed * 1_000_000 + number)
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        program = random_program(rng)
        run_id = record_agent(load(write(program), folder))
        for _ in range(2):
            same = replay_agent(run_id, load(write(program), folder))
            assert (same["verdict"], same["raised"]) == ("identical", ""), (number, write(program), same["divergences"])
        for _ in range(EXCHANGES):
            changed = exchange(rng, program)
            if changed:
                found = replay_agent(run_id, load(changed, folder))
                assert found["verdict"] != "identical", (number, write(program), changed)
        monkeypatch.chdir(tmp_path)
