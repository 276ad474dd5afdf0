"""Figures that are kept: those of committed code, each with its hardware, command and commit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from support.clauses import read_figures

ROOT = Path(__file__).resolve().parents[2]
TINY = """
from bench.figures import Figure, main

def measure():
    return [Figure("a tiny thing", {value}, "s", 1.0)]
"""


def _prepare(folder: Path) -> None:
    shutil.copytree(ROOT / "bench", folder / "bench", ignore=shutil.ignore_patterns("__pycache__", "measured.json"))
    (folder / "bench" / "wire.py").write_text(TINY.format(value=0.5))
    (folder / ".gitignore").write_text("__pycache__\n")
    for command in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")):
        subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)


def _bench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_kept_figures_say_where_they_were_measured_and_later_ones_take_their_place(tmp_path: Path) -> None:
    _prepare(tmp_path)
    kept = tmp_path / "bench" / "measured.json"
    assert _bench(tmp_path, "wire").returncode == 0
    assert not kept.exists()
    assert _bench(tmp_path, "--keep", "wire").returncode == 0
    other = json.loads(kept.read_text())
    other["another"] = {**other["a tiny thing"], "measured": 9.0}
    kept.write_text(json.dumps(other))
    assert _bench(tmp_path, "--keep", "wire").returncode == 0
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = read_figures(kept)
    assert {name: figure.value for name, figure in found.items()} == {"a tiny thing": 0.5, "another": 9.0}
    assert f"`python -m bench wire`, {head.stdout.strip()}, 20" in found["a tiny thing"].where
    assert "cores, Python 3." in found["a tiny thing"].where


def test_kept_figures_are_those_of_committed_code(tmp_path: Path) -> None:
    _prepare(tmp_path)
    (tmp_path / "bench" / "wire.py").write_text(TINY.format(value=0.1))
    refused = _bench(tmp_path, "--keep", "wire")
    assert refused.returncode == 2
    assert "1 files differ, such as bench/wire.py; commit them first" in refused.stderr
    assert not (tmp_path / "bench" / "measured.json").exists()
