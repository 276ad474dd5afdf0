"""Start-up time that our entry points add to a process.

Runs `opentelemetry-instrument python -c pass` in three ways in turn: recording, with SPANREPLAY_MODE=off, and
with an SDK tracer provider but without spanreplay. In the last case a distribution of the same name, first on the
path, hides our entry points. The OpenInference instrumentors are disabled in all of them.

Run: python -m bench.startup
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns

from bench.figures import Figure, main

GOAL_RATIO = 1.25
ROUNDS = 24
_INSTRUMENTORS = "langchain,openai,anthropic"
_SDK = """
def pre():
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    trace.set_tracer_provider(TracerProvider())
"""


def make_bare(folder: Path) -> dict[str, str]:
    """Return an environment in which an SDK provider is installed instead of spanreplay."""
    (folder / "bench_bare.py").write_text(_SDK, encoding="utf-8")
    info = folder / "spanreplay-0.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spanreplay\nVersion: 0.0.0\n", encoding="utf-8")
    entry = "[opentelemetry_pre_instrument]\nspanreplay = bench_bare:pre\n"
    (info / "entry_points.txt").write_text(entry, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


def time_start(environ: dict[str, str], folder: Path, program: str = "pass") -> tuple[float, float]:
    """Return the wall and CPU milliseconds of one process."""
    command = [str(Path(sys.executable).parent / "opentelemetry-instrument"), sys.executable, "-c", program]
    start = perf_counter_ns()
    process = subprocess.Popen(command, env=environ, cwd=folder)
    _, status, usage = os.wait4(process.pid, 0)
    wall = perf_counter_ns() - start
    process.returncode = status
    if status:
        raise RuntimeError(f"the process ended with {status}")
    return wall / 1e6, (usage.ru_utime + usage.ru_stime) * 1e3


def check_modes(cases: dict[str, dict[str, str]], folder: Path) -> None:
    """Check that each case is set up as named: only recording installs spanreplay."""
    question = (
        "import sys; is_ours = 'spanreplay.activate.install' in sys.modules; "
        "sys.exit(is_ours * 2 + ('opentelemetry.sdk.trace' in sys.modules))"
    )
    wanted = {"recording": 3, "off": 0, "bare": 1}
    command = [str(Path(sys.executable).parent / "opentelemetry-instrument"), sys.executable, "-c", question]
    for name, environ in cases.items():
        status = subprocess.run(command, env=environ, cwd=folder).returncode
        if status != wanted[name]:
            raise RuntimeError(f"case {name} is not set up as it should be: {status}")


def measure() -> Sequence[Figure]:
    """Measure ratios to the bare case."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "SPANREPLAY_", "PYTHON"))}
    common = {**kept, "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": _INSTRUMENTORS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work, shim = folder / "work", folder / "shim"
        work.mkdir()
        shim.mkdir()
        cases = {
            "bare": {**common, **make_bare(shim)},
            "recording": common,
            "off": {**common, "SPANREPLAY_MODE": "off"},
        }
        check_modes(cases, work)
        rounds: list[dict[str, tuple[float, float]]] = []
        order = list(cases)
        for _ in range(ROUNDS):
            order.append(order.pop(0))
            rounds.append({case: time_start(cases[case], work) for case in order})
    figures = []
    for case in ("recording", "off"):
        (wall, wall_ratio), (cpu, cpu_ratio) = (
            (
                statistics.median(times[case][part] for times in rounds),
                statistics.median(times[case][part] / times["bare"][part] for times in rounds),
            )
            for part in (0, 1)
        )
        detail = (
            f"{cpu:.0f} ms CPU, {wall:.0f} ms wall ({wall_ratio:.2f}x); medians of {ROUNDS} starts, each beside one"
            " with the SDK alone"
        )
        figures.append(Figure(f"start of a process, {case}", cpu_ratio, "x", GOAL_RATIO, detail))
    return figures


if __name__ == "__main__":
    main(measure)
