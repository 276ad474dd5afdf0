"""Bytes of a recorded run on the wire to the collector, before gzip.

Run: python -m bench.wire
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.figures import Figure, main

READS: Final = 6
WRITES: Final = 6
GOAL_SHARE: Final = 0.5
_AGENT: Final = f"""
import spanreplay

@spanreplay.boundary("tool", name="quote", effect="read")
def quote(symbol):
    return {{"symbol": symbol, "price": 190.25}}

@spanreplay.boundary("tool", name="order", effect="write")
def order(symbol, amount):
    return {{"id": f"{{symbol}}-{{amount}}"}}

for number in range({READS}):
    quote("ACME")
for number in range({WRITES}):
    order("ACME", number)
"""


def measure() -> Sequence[Figure]:
    """Measure twelve tool calls of an instrumented process, as stored in the spool and as sent."""
    from spanreplay.recording.spool.directory import iter_spool_files
    from spanreplay.recording.spool.frames import scan_file
    from spanreplay.recording.spool.merge import merge_requests

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "agent.py").write_text(_AGENT, encoding="utf-8")
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "SPANREPLAY_"))}
        command = [str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable, "agent.py"]
        subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True, timeout=120)
        paths = iter_spool_files(folder / ".spanreplay")
        payloads = [frame.payload for path in paths for frame in scan_file(path)]
    apart, together = sum(map(len, payloads)), len(merge_requests(payloads))
    detail = f"{READS} reads and {WRITES} writes, {len(payloads)} records; {apart:,} bytes one by one"
    return [
        Figure("bytes of a run on the wire, before gzip", together, "B", None, detail),
        Figure("the same, as a share of its records one by one", together / apart, "", GOAL_SHARE, detail),
    ]


if __name__ == "__main__":
    main(measure)
