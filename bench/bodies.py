"""Cost of transferring a 64 MiB body through each HTTP library while recording, over the same transfer bare.

Run: python -m bench.bodies. It uses only loopback; the server runs in its own process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.figures import Figure, main

SIZE: Final = 64 << 20
ROUNDS: Final = 3
PAIRS: Final = 1
GOAL_RATIO: Final = 2.0
GOAL_MIB: Final = 64.0
LIBRARIES: Final = ("httpx", "httpx2", "aiohttp", "requests", "urllib3", "urllib", "botocore")
WAYS: Final = ("download_whole", "download_stream", "upload_whole", "upload_stream")
_PROGRAM: Final = Path(__file__).resolve().parent.parent / "tests" / "support" / "transfers.py"


def _run(library: str, way: str, url: str, directory: str = "") -> dict[str, Any]:
    command = [sys.executable, str(_PROGRAM), library, way, url, str(SIZE), str(ROUNDS)]
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "SPANREPLAY_"))}
    done = subprocess.run(
        [*command, *([directory] if directory else [])], env=environ, stdout=subprocess.PIPE, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _measure(library: str, way: str, url: str) -> tuple[Figure, Figure]:
    bare, recorded = [], []
    for _ in range(PAIRS):
        bare.append(_run(library, way, url))
        with tempfile.TemporaryDirectory() as folder:
            recorded.append(_run(library, way, url, folder))
    plain_s, recorded_s = (min(each["cpu_s"] for each in runs) for runs in (bare, recorded))
    grown = [min(each["grown_bytes"] for each in runs) / 2**20 for runs in (bare, recorded)]
    label = f"{library}, {way.replace('_', ', ')}, 64 MiB"
    return (
        Figure(f"{label}: CPU", recorded_s / plain_s, "times", GOAL_RATIO, f"{plain_s:.3f} s bare"),
        Figure(f"{label}: memory on top", grown[1] - grown[0], "MiB", GOAL_MIB, f"{grown[0]:.0f} MiB bare"),
    )


def measure() -> Sequence[Figure]:
    """Measure the CPU of a recorded transfer over a bare one, and its additional memory, by library and way."""
    figures: list[Figure] = []
    command = [sys.executable, str(_PROGRAM), "serve", str(SIZE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            for library in LIBRARIES:
                for way in WAYS:
                    figures += _measure(library, way, url)
        finally:
            server.terminate()
    return figures


if __name__ == "__main__":
    main(measure)
