"""Cost of recording at each level, relative to the same agent unrecorded: code without calls, and service requests.

The agent (`level_works.py`) runs plain, at level `calls` and at level `full`, each in its own process, in turns.

Run: python -m bench.levels
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.figures import Figure, main
from bench.first_token import provider

GOAL_CALLS: Final = 1.05
GOAL_REQUEST: Final = 1.25
GOAL_FULL: Final = 5.0
ROUNDS: Final = 3
WORKS: Final = Path(__file__).with_name("level_works.py")
_REQUESTS: Final = ("model call, httpx", "request with two model calls", "unit with two model calls")
_BOUNDARIES: Final = (
    "file read, data",
    "sqlite insert",
    "time.time",
    "time.monotonic",
    "datetime.now",
    "random.random",
    "uuid.uuid4",
)
"""Works that are recorded at level `calls` too, so they have no goal there."""


def run(level: str, folder: Path, url: str) -> dict[str, float]:
    """Run one agent and return µs of CPU by work. An empty `level` means unrecorded."""
    data = folder / "data" / "notes.txt"
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "SPANREPLAY_"))},
        "OPENAI_BASE_URL": url,
        "SPANREPLAY_DIR": str(folder / f"spool-{level}"),
        "SPANREPLAY_LEVEL": level,
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain,openai,anthropic",
    }
    tool = [str(Path(sys.executable).parent / "opentelemetry-instrument")] if level else []
    command = [*tool, sys.executable, str(WORKS), str(data)]
    done = subprocess.run(command, env=environ, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(rounds: int = ROUNDS) -> Sequence[Figure]:
    """Measure each work at each level: best of the rounds over best of the plain rounds."""
    times: dict[str, list[dict[str, float]]] = {"": [], "calls": [], "full": []}
    with tempfile.TemporaryDirectory() as name, provider() as url:
        folder = Path(name)
        (folder / "data").mkdir()
        (folder / "data" / "notes.txt").write_text("a note\n" * 100, encoding="utf-8")
        for _ in range(rounds):
            for level, found in times.items():
                found.append(run(level, folder, url))
    quick = {level: {work: min(each[work] for each in found) for work in found[0]} for level, found in times.items()}
    figures = []
    for level in ("calls", "full"):
        for work, plain in quick[""].items():
            detail = f"{plain:.2f} µs plain, {quick[level][work]:.2f} µs at level {level}"
            figures.append(
                Figure(f"{work}, level {level}", quick[level][work] / plain, "times", _goal(level, work), detail)
            )
    return figures


def _goal(level: str, work: str) -> float | None:
    if level == "full":
        return GOAL_FULL
    return GOAL_REQUEST if work in _REQUESTS else None if work in _BOUNDARIES else GOAL_CALLS


if __name__ == "__main__":
    main(measure)
