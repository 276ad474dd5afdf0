"""The benchmark of resolving runs: it makes calls of its own, which the replayer may ask for more than it did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_benchmark_of_resolving_measures_every_figure() -> None:
    program = "from bench.resolve import measure\nprint([figure.measured > 0 for figure in measure(300)])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "[True, True, True, True, True]\n", done.stderr
