"""A replay in several processes: each resolves its own calls, and the first process collects the findings."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.own_threads import make_lock
from spanreplay.replayer.compare.findings import Findings
from spanreplay.replayer.compare.ignored import IgnoredDiff
from spanreplay.replayer.divergence import Diff, from_fields
from spanreplay.replayer.resolve.hidden import Hidden, Withheld

if TYPE_CHECKING:
    from spanreplay.replayer.resolve.shared_state import SharedState
    from spanreplay.runtime.processes import ProcessGroup


class Parts:
    """The findings of a replay's processes, kept by each for itself."""

    def __init__(self, session: SharedState) -> None:
        self._session = session

    def join(self, shared: ProcessGroup, *, is_worker: bool) -> None:
        """Start afresh in a newly started process."""
        join(self._session, shared, is_worker=is_worker)

    def to_part(self) -> dict[str, Any]:
        """Return this process's findings as JSON values."""
        return to_part(self._session)

    def add_part(self, part: dict[str, Any]) -> None:
        """Add another process's findings."""
        add_part(self._session, part)


_FLAGS: Final = ("is_stopped", "has_reached_frontier")


def join(session: SharedState, shared: ProcessGroup, *, is_worker: bool) -> None:
    """Start afresh in a newly started process: the first process keeps its own findings."""
    session._lock = make_lock()
    session.is_forked = False
    session.is_stopped = session.has_reached_frontier = False
    session.findings = Findings(session.recording, session.index)
    session.hidden = Hidden(session.recording)
    session.counts = dict.fromkeys(session.counts, 0)
    session.sockets_denied, session.live_tokens, session.internal_error = [], 0, ""
    session.gate.join(shared, is_worker=is_worker)


def to_part(session: SharedState) -> dict[str, Any]:
    """Return this process's findings as JSON values."""
    return {
        "used": sorted(session.index.used),
        "covered": sorted(session.index.covered),
        "divergences": [asdict(divergence) for divergence in session.divergences],
        "divergences_total": session.findings.divergences_total,
        "ignored": [asdict(ignored) for ignored in session.findings.ignored],
        "ignored_total": session.findings.ignored_total,
        "withheld": session.hidden.withheld,
        "counts": session.counts,
        "sockets_denied": session.sockets_denied,
        "live_tokens": session.live_tokens,
        "error": session.internal_error,
        **{name: getattr(session, name) for name in _FLAGS},
    }


def add_part(session: SharedState, part: dict[str, Any]) -> None:
    """Add another process's findings."""
    session.index.used.update(part["used"])
    session.index.covered.update(part["covered"])
    for fields in part["divergences"]:
        session.add_divergence(from_fields(fields))
    findings = session.findings
    findings.divergences_total += part["divergences_total"] - len(part["divergences"])
    findings.ignored_total += part["ignored_total"]
    for fields in part["ignored"]:
        findings.ignored.append(IgnoredDiff(**{**fields, "diff": tuple(Diff(**diff) for diff in fields["diff"])}))
    session.hidden.withheld += [Withheld(*each) for each in part["withheld"]]
    for name, count in part["counts"].items():
        session.counts[name] = session.counts.get(name, 0) + count
    session.sockets_denied += part["sockets_denied"]
    session.live_tokens += part["live_tokens"]
    session.internal_error = session.internal_error or part["error"]
    for name in _FLAGS:
        setattr(session, name, getattr(session, name) or part[name])
