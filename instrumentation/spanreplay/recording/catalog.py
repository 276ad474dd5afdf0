"""Where recordings are found: one protocol for a spool directory, a service and a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from spanreplay.model.attributes import UNIT, UNIT_TRACE
from spanreplay.model.call import Kind, Outcome, Recording, RootRecord

__all__ = [
    "Catalog",
    "Erased",
    "Erasure",
    "Imported",
    "RunQuery",
    "RunSummary",
    "find_newest",
    "is_of_trace",
    "matches",
    "summarize",
]

PARENT: Final = "parent"
"""Member of the root's environment: the run and the call that started this process."""
FORKED_FROM: Final = "forked_from"
"""Member of the root's environment: the run of the process that this one was forked from."""

RUNS_MAX = 1000


@dataclass(frozen=True)
class RunQuery:
    """A search for runs; an empty field matches every run. Times are nanoseconds since the epoch."""

    user_id: str = ""
    session_id: str = ""
    app: str = ""
    tool: str = ""
    status: str = ""
    since_ns: int = 0
    until_ns: int = 0
    limit: int = 50
    include_replays: bool = False
    run_id_prefix: str = ""
    trace_id: str = ""
    """32 lower-case hexadecimal digits: the run's own trace, or the trace that its request belongs to."""


@dataclass(frozen=True)
class RunSummary:
    """One line about a run; `status` is ok, error or incomplete."""

    root: RootRecord
    calls: int
    llm_calls: int
    errors: int
    tokens_in: int
    tokens_out: int
    status: str
    tools: tuple[str, ...]


@dataclass(frozen=True)
class Imported:
    """The result of an import."""

    run_id: str
    spans: int


@dataclass(frozen=True)
class Erasure:
    """What to erase: runs, and all runs of users and sessions."""

    run_ids: tuple[str, ...] = ()
    user_ids: tuple[str, ...] = ()
    session_ids: tuple[str, ...] = ()
    before_ns: int = 0
    """If set, also runs that ended before; only in a directory, a service removes by age itself."""
    with_failures: bool = False
    """Whether age removes runs, too, that ended in an error."""


@dataclass(frozen=True)
class Erased:
    """The runs that were erased, with their replays and the runs that their processes started."""

    run_ids: tuple[str, ...]
    is_shown: bool = False
    """Whether Phoenix may still show them."""


class Catalog(Protocol):
    """A place that holds recordings.

    Run ids may be given as a prefix of at least 6 characters that names one run.
    Errors: RunNotFound, AmbiguousRun, DamagedRecording, NewerSchema, ServiceError.
    """

    def search(self, query: RunQuery) -> list[RunSummary]:
        """Matching runs, newest first, at most `query.limit` (1000 at most)."""
        ...

    def load(self, run_id: str) -> Recording:
        """All boundary calls of a run."""
        ...

    def export(self, run_id: str) -> bytes:
        """The run as the bytes of a `.replay` file, with all its spans."""
        ...

    def import_bundle(self, bundle: bytes) -> Imported:
        """Import a `.replay` file; importing it twice is harmless."""
        ...

    def erase(self, chosen: Erasure, *, is_trial: bool = False) -> Erased:
        """Remove runs for good, or with `is_trial` only find them. Raises: RunNotFound if one is not there."""
        ...

    def close(self) -> None:
        """Release all resources; idempotent."""
        ...


def _count(meta_value: object) -> int:
    return int(meta_value) if isinstance(meta_value, (int, float)) else 0


def summarize(recording: Recording) -> RunSummary:
    """The summary of a run; pure, O(calls)."""
    calls = recording.calls
    errors = sum(c.outcome == Outcome.ERROR.value for c in calls)
    if not recording.completeness().is_complete:
        status = "incomplete"
    elif recording.root.outcome == Outcome.ERROR.value:
        status = "error"
    else:
        status = "ok"
    return RunSummary(
        root=recording.root,
        calls=len(calls),
        llm_calls=sum(c.kind == Kind.LLM.value for c in calls),
        errors=errors,
        tokens_in=sum(_count(c.meta.get("tokens_in")) for c in calls),
        tokens_out=sum(_count(c.meta.get("tokens_out")) for c in calls),
        status=status,
        tools=tuple(sorted({c.name for c in calls if c.kind in (Kind.TOOL.value, Kind.MCP.value)})),
    )


def matches(summary: RunSummary, query: RunQuery) -> bool:
    """Whether a run matches a query; pure."""
    root = summary.root
    if root.replay_of and not query.include_replays:
        return False
    wanted = (
        (query.user_id, root.user_id),
        (query.session_id, root.session_id),
        (query.app, root.app),
        (query.status, summary.status),
    )
    if any(want and want != have for want, have in wanted):
        return False
    if query.trace_id and not is_of_trace(root, query.trace_id):
        return False
    if query.tool and query.tool not in summary.tools:
        return False
    if query.run_id_prefix and not root.run_id.startswith(query.run_id_prefix):
        return False
    if query.since_ns and root.start_ns < query.since_ns:
        return False
    return not (query.until_ns and root.start_ns > query.until_ns)


def is_of_trace(root: RootRecord, trace_id: str) -> bool:
    """Whether a run is part of a trace; pure."""
    unit = root.env.get(UNIT)
    return trace_id in (root.trace_id, unit.get(UNIT_TRACE) if isinstance(unit, Mapping) else None)


def find_newest(catalog: Catalog, query: RunQuery) -> RunSummary | None:
    """The newest run that no other run started; if there is none, the newest run found; None if none is found."""
    found = catalog.search(query)
    return next((summary for summary in found if not is_child(summary.root)), found[0] if found else None)


def is_child(root: RootRecord) -> bool:
    """Whether another run's process started or forked the process of this run."""
    return isinstance(root.env.get(PARENT), Mapping) or FORKED_FROM in root.env
