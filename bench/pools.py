"""Duration of a replay of short items in process pools, relative to the recorded run; no worker may stall.

Each run has its own agent, recorded and replayed with the commands that a user calls. Times are from the start of the
run to its end, as stated in the verdict, without Python's start-up.

Run: python -m bench.pools
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from bench.figures import Figure, main

ITEMS = 30
WORKERS = 2
INSTRUMENTORS = ",".join(sorted({each.name for each in entry_points(group="opentelemetry_instrumentor")}))
"""Disabled, because loading them takes longer than the items."""
CALL_S = 0.01
ROUNDS = 3
AGENT = """
import multiprocessing, sys, time
from concurrent.futures import ProcessPoolExecutor
import spanreplay

@spanreplay.boundary("tool", name="ask", effect="read")
def ask(number):
    time.sleep(float(sys.argv[4]))
    return number

def work(number):
    return ask(number) + ask(number)

if __name__ == "__main__":
    context, workers, items = multiprocessing.get_context("fork"), int(sys.argv[2]), range(int(sys.argv[3]))
    if sys.argv[1] == "Pool":
        with context.Pool(workers) as pool:
            print(pool.map(work, items, chunksize=1))
    else:
        with ProcessPoolExecutor(workers, mp_context=context) as executor:
            print(list(executor.map(work, items)))
"""


def _run(folder: Path, *command: str) -> str:
    tools = Path(sys.executable).parent
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "SPANREPLAY_", "PYTHON"))}
    environ = {
        **kept,
        "PATH": f"{tools}{os.pathsep}{kept.get('PATH', '')}",
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": INSTRUMENTORS,
    }
    return subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True, text=True).stdout


def _measure_once(kind: str, folder: Path) -> tuple[float, float]:
    """Return the seconds of a replay and of the run."""
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    agent = [sys.executable, "agent.py", kind, str(WORKERS), str(ITEMS), str(CALL_S)]
    _run(folder, "opentelemetry-instrument", *agent)
    run_id = json.loads(_run(folder, "spanreplay", "ls", "--json"))[0]["run_id"]
    _run(folder, "spanreplay", "replay", run_id, "--json", "verdict.json", "--", *agent)  # fails unless identical
    verdict = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
    return verdict["duration_ms"] / 1000, verdict["recorded_duration_ms"] / 1000


def _measure(kind: str, folder: Path) -> Figure:
    pairs = [_measure_once(kind, folder / f"{kind}{number}") for number in range(ROUNDS)]
    ratio = statistics.median(replay_s / run_s for replay_s, run_s in pairs)
    shown = ", ".join(f"{replay_s:.2f} s over {run_s:.2f} s" for replay_s, run_s in pairs)
    detail = f"{shown}; {ITEMS} items of two calls of {CALL_S * 1000:.0f} ms, {WORKERS} workers"
    return Figure(f"replay short items in a {kind}, over the run", ratio, "x", 1.5, detail)


def measure() -> Sequence[Figure]:
    """Measure both kinds of pools."""
    with tempfile.TemporaryDirectory() as folder:
        return [_measure(kind, Path(folder)) for kind in ("Pool", "ProcessPoolExecutor")]


if __name__ == "__main__":
    main(measure)
