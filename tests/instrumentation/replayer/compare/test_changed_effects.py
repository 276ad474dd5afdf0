"""One effect of a random program is changed, and no verdict calls that identical."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from support.changed import load, record_agent, replay_agent
from support.effect_programs import mutate, random_steps, write
from support.sampling import IS_WHOLE

PROGRAMS = int(os.environ.get("SPANREPLAY_TEST_EFFECTS", "12" if IS_WHOLE else "6"))
"""Number of programs recorded; 2,500 of them, with their mutations, are 10,000 verdicts."""
MUTATIONS = 4


def test_s60_no_changed_effect_is_called_identical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unchanged program is identical; with one effect changed, dropped, added or exchanged it has diverged."""
    seed = int(os.environ.get("SPANREPLAY_TEST_SEED", "31"))
    mask = os.umask(0)
    os.umask(mask)
    for number in range(PROGRAMS):
        rng = random.Random(seed * 1_000_000 + number)
        monkeypatch.setenv("SPANREPLAY_LEVEL", rng.choice(("full", "calls")))
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        steps = random_steps(rng)
        run_id = record_agent(load(write(steps), folder))
        for path in [p for p in folder.iterdir() if p.name != ".spanreplay"]:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        os.umask(mask)
        same = replay_agent(run_id, load(write(steps), folder))
        os.umask(mask)
        assert (same["verdict"], same["raised"]) == ("identical", ""), (number, write(steps), same["divergences"])
        for _ in range(MUTATIONS):
            changed = write(mutate(rng, steps))
            found = replay_agent(run_id, load(changed, folder))
            os.umask(mask)
            assert found["verdict"] != "identical", (number, write(steps), changed)
        shutil.rmtree(folder)
        monkeypatch.chdir(tmp_path)
