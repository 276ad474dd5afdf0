"""Time until a recording of 10,000 calls can be replayed.

Run: python -m bench.load
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time_ns
from typing import Any

from bench.figures import Figure, main

CALLS = 10_000
GOAL_SECONDS = 1.0
REPEATS = 5


def _record(folder: Path) -> str:
    """Record a run of `CALLS` tool calls in the folder's spool; return its id."""
    import spanreplay

    @spanreplay.boundary("tool", name="quote", effect="read")
    def quote(symbol: str, amount: int) -> dict[str, Any]:
        return {"symbol": symbol, "amount": amount, "price": 190.25}

    with spanreplay.record(name="bench", directory=folder) as block:
        for number in range(CALLS):
            quote("ACME", number)
    return block.run_id


def _time(load: Callable[[], Any]) -> float:
    """Return the CPU seconds until the session is ready."""
    from spanreplay.replayer.resolve.plan import read_plan
    from spanreplay.replayer.resolve.session import Session

    start = process_time_ns()
    session = Session(load(), read_plan(""))
    seconds = (process_time_ns() - start) / 1e9
    if len(session.recording.calls) != CALLS or session.tampering or not session.completeness.is_complete:
        raise RuntimeError(f"{len(session.recording.calls)} calls; {session.tampering} {session.completeness.reasons}")
    return seconds


def measure() -> Sequence[Figure]:
    """Measure loading from the directory and from a `.replay` file, including the root hash check and indexing."""
    from spanreplay.recording.bundle import load_file
    from spanreplay.recording.spool import SpoolCatalog

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_id = _record(folder)
        bundle = folder / "run.replay"
        bundle.write_bytes(SpoolCatalog(folder).export(run_id))
        spooled = [_time(lambda: SpoolCatalog(folder).load(run_id)) for _ in range(REPEATS)]
        bundled = [_time(lambda: load_file(bundle)) for _ in range(REPEATS)]
    return [
        Figure(f"load {CALLS:,} calls for a replay, {where}", min(times), "s", GOAL_SECONDS,
               f"read, verify the root hash, index; process CPU, best of {REPEATS}, worst {max(times):.2f} s")
        for where, times in (("from the spool directory", spooled), ("from a .replay file", bundled))
    ]  # fmt: skip


if __name__ == "__main__":
    main(measure)
