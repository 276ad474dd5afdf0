"""Long proofs of the tests, run whole: a thousand kills, ten minutes without a store, a million calls of a process.

`make test` runs the same tests with less. Each figure is a count of what was survived; a failure ends the benchmark.
Run: python -m bench.proofs
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from bench.figures import Figure, main

ROOT: Final = Path(__file__).resolve().parent.parent
CASES: Final = 400
"""Kills while acknowledging; half as many cases follow with three kills each while loading."""
KILLS_OF: Final = {"test_c1_kill_while_acknowledging": 1, "test_c1_kill_while_loading": 3}
OUTAGE_S: Final = 600
CALLS: Final = 1_000_000


def _count_passed(path: str, chosen: str, **settings: int) -> Counter[str]:
    """Run chosen tests; return how often each of their functions passed. Raises: RuntimeError if one did not."""
    environ = {**os.environ, **{f"SPANREPLAY_TEST_{name}": str(value) for name, value in settings.items()}}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", path, "-k", chosen, f"--junit-xml={report}"]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{path} -k {chosen} failed:\n{done.stdout[-4000:]}")
        cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - our own file
    passed = [case for case in cases if case.find("skipped") is None]
    return Counter(str(case.get("name")).partition("[")[0] for case in passed)


def measure() -> Sequence[Figure]:
    """Run the proofs one after the other."""
    killed = _count_passed("tests/collector/test_collector.py", " or ".join(KILLS_OF), KILLS=CASES)
    kills = sum(KILLS_OF[name] * count for name, count in killed.items())
    waited = _count_passed("tests/collector/test_loader.py", "test_c6_loader_waits_for_a_store", OUTAGE_S=OUTAGE_S)
    flat = _count_passed("tests/end_to_end/test_bounded.py", "test_p8_the_memory_of_a_process_stays", CALLS=CALLS)
    return [
        Figure(
            "kill -9 of a collector at a random time, nothing acknowledged lost or twice",
            kills,
            "kills",
            1000,
            f"{sum(killed.values())} cases",
            is_more_better=True,
        ),
        Figure(
            "outage of the store, everything acknowledged loaded once afterwards",
            OUTAGE_S / 60 * min(1, waited.total()),
            "min",
            10,
            "records come in all the time",
            is_more_better=True,
        ),
        Figure(
            "calls of one process, its memory within 16 MB in the second half",
            CALLS * min(1, flat.total()),
            "calls",
            CALLS,
            "level calls",
            is_more_better=True,
        ),
    ]


if __name__ == "__main__":
    main(measure)
