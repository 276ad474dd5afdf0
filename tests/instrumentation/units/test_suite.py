"""Forks of a suite: limits on their effect on the process that waits for them."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import json, os
from spanreplay.units import suite

suite.VERDICT_BYTES_MAX = 2 << 20

def become(unit, send):
    send("{}" if unit == "short" else "x" * 50_000_000)
    os._exit(0)

reports = []
suite.Forks(["long", "short"], 2, 60, become, lambda report: reports.append(dict(report)), lambda pid: None).divide()
print(json.dumps(reports))
"""


def test_p5_a_fork_that_tells_without_end_is_ended() -> None:
    """The waiting process keeps at most the size of a verdict, and continues with the other forks."""
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=600)
    reports = {report["unit"]: report for report in json.loads(found.stdout)}
    assert reports["short"]["verdict"] == "{}"
    assert reports["long"]["status"] < 0
    assert "more than 2 MiB" in json.loads(reports["long"]["verdict"])["error"]
