"""Whether a run is still running, is waiting for a human, or has ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from spanreplay.model.attributes import RESUMES
from spanreplay.recording.catalog import RUNS_MAX, Catalog, RunQuery, RunSummary

__all__ = ["ENDED", "RUNNING", "UNKNOWN", "WAITING", "find_states"]

RUNNING: Final = "running"
WAITING: Final = "waiting"
ENDED: Final = "ended"
UNKNOWN: Final = "unknown"
"""The run has no end, and this catalog cannot tell whether its process is alive."""


def find_states(catalog: Catalog, found: Iterable[RunSummary]) -> dict[str, str]:
    """Run id → its state. A run that was killed has ended."""
    summaries = list(found)
    is_written = getattr(catalog, "is_written", None)  # only a directory knows whether a run is being written
    states = {}
    for summary in summaries:
        manifest, run_id = summary.root.manifest, summary.root.run_id
        if manifest:
            states[run_id] = WAITING if manifest.get("suspended") else ENDED
        elif is_written is None:
            states[run_id] = UNKNOWN
        else:
            states[run_id] = RUNNING if is_written(run_id) else ENDED
    waiting = [s for s in summaries if states[s.root.run_id] == WAITING]
    if waiting:
        first_ns = min(s.root.start_ns for s in waiting)
        later = catalog.search(RunQuery(since_ns=first_ns, limit=RUNS_MAX, include_replays=True))
        resumed = {s.root.env.get(RESUMES) for s in later}
        states |= {s.root.run_id: ENDED for s in waiting if s.root.run_id in resumed}
    return states
