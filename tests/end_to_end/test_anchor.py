"""`spanreplay anchor` and `verify --anchor`: runs that are changed or removed later are found, without any key."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from spanreplay.recording.bundle import load_file
from spanreplay.recording.seal.tree import hash_leaf, hash_root
from support.replaying import Workplace

AGENT: Final = """
import sys
from spanreplay import boundary

@boundary("tool", effect="write")
def pay(amount):
    return {"paid": amount}

for amount in range(3):
    print(pay(amount * int(sys.argv[1])))
"""
FILE: Final = "anchors.jsonl"
VERIFIES, ERROR, UNSIGNED, TAMPERED = 0, 1, 4, 5


@dataclass(frozen=True)
class Kept:
    """Three runs without signature, of which the first two are anchored, in a line each."""

    workplace: Workplace
    runs: tuple[str, ...]

    def verify(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `verify --anchor`."""
        return self.workplace.run("verify", "--anchor", FILE, *arguments)

    @property
    def file(self) -> Path:
        """The file of anchors."""
        return self.workplace.path / FILE


@pytest.fixture
def kept(workplace: Workplace) -> Kept:
    """An agent recorded three times, and anchored after the first and the second."""
    agent = workplace.write("agent.py", AGENT)
    for factor in ("1", "10", "100"):
        workplace.record(agent, factor)
        if factor != "100":
            assert workplace.run("anchor", FILE).returncode == 0
    return Kept(workplace, tuple(each.run_id for each in workplace.recordings()))


def test_n15_anchored_runs_are_verified_offline_from_an_export(kept: Kept, tmp_path: Path) -> None:
    """All runs of the file verify without a key, in the store and as an exported file; a later run is not in it."""
    found = kept.verify()
    assert (found.returncode, found.stdout.count("verified  run")) == (VERIFIES, 2), found.stdout
    file = f"{kept.runs[0]}.replay"
    assert kept.workplace.run("export", kept.runs[0]).returncode == 0
    exported = kept.verify(file)
    assert (exported.returncode, "anchored 2" in exported.stdout) == (VERIFIES, True), exported.stdout
    later = kept.verify(kept.runs[2])
    assert (later.returncode, "it is not in the anchors" in later.stdout) == (UNSIGNED, True)
    assert kept.workplace.run("verify").returncode == 2


def test_n15_anchoring_again_adds_what_is_new_and_nothing_twice(kept: Kept) -> None:
    """The head changes only with a new run, and the file holds no recorded content."""
    first = kept.workplace.run("anchor", FILE, "--json")
    assert json.loads(first.stdout)["added"] == [kept.runs[2]]
    again = kept.workplace.run("anchor", FILE)
    assert again.stdout.strip() == json.loads(first.stdout)["head"]
    assert len(kept.file.read_text(encoding="utf-8").splitlines()) == 3
    assert "paid" not in kept.file.read_text(encoding="utf-8")


def test_n15_a_run_that_was_removed_is_missed(kept: Kept) -> None:
    """Nobody can take a run away after it was anchored."""
    assert kept.workplace.run("erase", kept.runs[1], "--yes").returncode == 0
    found = kept.verify()
    assert (found.returncode, f"run {kept.runs[1]}: it was here on 2" in found.stdout) == (TAMPERED, True), found.stdout


def test_n15_a_run_that_was_forged_is_not_the_anchored_one(kept: Kept) -> None:
    """A whole other run under the same id, with a root that fits its calls, is found by the anchor alone."""
    one, other = kept.runs[0], kept.runs[2]
    text = kept.workplace.run("export", other, "--jsonl", "-o", "-").stdout
    forged = kept.workplace.path / "forged.jsonl"
    text = text.replace(other, one)
    forged.write_text(text, encoding="utf-8")
    recording = load_file(forged)
    root = hash_root(hash_leaf(call) for call in recording.calls)
    forged.write_text(text.replace(str(recording.root.manifest["root"]), root), encoding="utf-8")
    changed = kept.verify(str(forged))
    assert changed.returncode == TAMPERED, changed.stdout
    assert "it is not the run that was anchored on 2" in changed.stdout


@pytest.mark.parametrize("attack", ["change", "remove a line", "swap lines", "remove a run"])
def test_n15_a_changed_file_of_anchors_is_refused(kept: Kept, attack: str) -> None:
    """Each line is chained to the one before it, and its root covers its runs."""
    lines = kept.file.read_text(encoding="utf-8").splitlines()
    stated = json.loads(lines[1])
    hashed = stated["runs"][kept.runs[1]]
    attacks = {
        "change": [lines[0], lines[1].replace(hashed, "0" * 64)],
        "remove a line": lines[1:],
        "swap lines": lines[::-1],
        "remove a run": [lines[0], json.dumps({**stated, "runs": {}})],
    }
    kept.file.write_text("".join(f"{line}\n" for line in attacks[attack]), encoding="utf-8")
    found = kept.verify()
    assert (found.returncode, "of the anchors was changed" in found.stderr) == (ERROR, True), found.stderr
    assert kept.workplace.run("anchor", FILE).returncode == ERROR
