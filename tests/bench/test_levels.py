"""The benchmark of the levels of recording."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json
from bench.__main__ import NAMES
from bench.levels import measure
print(json.dumps(["levels" in NAMES, [(figure.name, figure.measured) for figure in measure(1)]]))
"""


def test_p7_make_bench_has_a_figure_for_each_level() -> None:
    """Whatever is measured at level `calls` is measured at level `full`, and `make bench` does both."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    is_in_bench, figures = json.loads(done.stdout)
    assert is_in_bench
    levels: dict[str, set[str]] = {}
    for name, times in figures:
        assert times > 0
        work, _, level = name.rpartition(", level ")
        levels.setdefault(level, set()).add(work)
    assert set(levels) == {"calls", "full"}
    assert levels["calls"] == levels["full"]
    assert {"request with two model calls", "time.time"} <= levels["calls"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "\nbench: " in makefile
    assert "tools/bench.sh" in makefile.partition("\nbench: ")[2].partition("\n\n")[0]
    assert "-m bench" in (ROOT / "tools" / "bench.sh").read_text(encoding="utf-8")
