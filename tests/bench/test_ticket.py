"""The benchmark of the time from a ticket to the reproduced failure."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json
from bench.__main__ import NAMES
from bench.ticket import measure
(figure,) = measure(20)
print(json.dumps(["ticket" in NAMES, figure.name, figure.goal, figure.measured, figure.detail]))
"""
PUBLISHED = re.compile(r"^\| from a ticket to the reproduced failure \|.*\| (\d+\.\d) s[^|]* \| 60 s \|", re.MULTILINE)


def test_n19_time_from_a_ticket_to_the_reproduced_failure_is_published() -> None:
    """`make bench` finds a failed run by user and minute and reproduces it; the last figure is in its README."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    is_in_bench, name, goal, measured, detail = json.loads(done.stdout)
    assert (is_in_bench, name, goal) == (True, "from a ticket to the reproduced failure", 60)
    assert measured > 0
    assert "among 21 runs" in detail
    published = PUBLISHED.search((ROOT / "bench" / "README.md").read_text(encoding="utf-8"))
    assert published is not None
    assert float(published[1]) < goal
