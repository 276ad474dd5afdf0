"""Time of `spanreplay diff` for two runs of 10,000 calls.

Run: python -m bench.diff
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

from bench.figures import Figure, main

CALLS = 10_000
GOAL_SECONDS = 2.0
REPEATS = 5
DIFFERENT = 3


def _record(folder: Path, changed: int) -> str:
    """Record a run of `CALLS` tool calls, with another value in every `changed`-th call; return its id."""
    import spanreplay

    @spanreplay.boundary("tool", name="quote", effect="read")
    def quote(symbol: str, amount: int) -> dict[str, Any]:
        return {"symbol": symbol, "amount": amount, "price": 190.25}

    with spanreplay.record(name="bench", directory=folder) as block:
        for number in range(CALLS):
            quote("ACME", -number if changed and number % changed == 0 else number % 1000)
    return block.run_id


def _time(folder: Path, a: str, b: str) -> float:
    """Return the CPU seconds of the command, including its start and reading both runs."""
    before = getrusage(RUSAGE_CHILDREN)
    command = [str(Path(sys.executable).parent / "spanreplay"), "diff", a, b, "--json"]
    done = subprocess.run(command, env={"SPANREPLAY_DIR": str(folder)}, capture_output=True, check=False)
    after = getrusage(RUSAGE_CHILDREN)
    if done.returncode != DIFFERENT:
        raise RuntimeError(done.stderr.decode())
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure() -> Sequence[Figure]:
    """Compare two runs in which every tenth call differs; most requests occur many times."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = [_record(folder, changed) for changed in (0, 10)]
        times = [_time(folder, *runs) for _ in range(REPEATS)]
    detail = f"the command, from start to end; process CPU, best of {REPEATS}, worst {max(times):.2f} s"
    return [Figure(f"diff of two runs of {CALLS:,} calls", min(times), "s", GOAL_SECONDS, detail)]


if __name__ == "__main__":
    main(measure)
