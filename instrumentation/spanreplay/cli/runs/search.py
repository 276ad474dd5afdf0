"""Find runs by what a person types: a user's or session's name is recorded redacted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spanreplay.model import config
from spanreplay.recording.catalog import Catalog, RunQuery, RunSummary, is_of_trace

__all__ = ["redact_name", "search"]


def redact_name(text: str) -> str:
    """Redact a text with this directory's key: recordings store a user's e-mail address as its token."""
    named = config.read_setting("SPANREPLAY_REDACT_KEY")
    path = Path(named) if named else config.read_data_dir() / "redact.key"
    if not text or not path.is_file():
        return text
    from spanreplay.redact import Redactor, load_or_create_key

    return Redactor(*load_or_create_key(path, is_named=bool(named))).run().text(text)


def search(catalog: Catalog, query: RunQuery) -> list[RunSummary]:
    """Find matching runs, newest first; user and session are also searched for in their redacted form."""
    found = catalog.search(query)
    redacted = replace(query, user_id=redact_name(query.user_id), session_id=redact_name(query.session_id))
    if redacted != query:
        found = [*found, *catalog.search(redacted)]
        found.sort(key=lambda s: s.root.start_ns, reverse=True)
    if query.trace_id:  # a service of an earlier version ignores trace_id
        found = [summary for summary in found if is_of_trace(summary.root, query.trace_id)]
    return found[: query.limit]
