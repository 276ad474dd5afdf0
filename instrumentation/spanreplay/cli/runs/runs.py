"""Shared by the commands: resolve the name of a run, open the catalog that holds it, and convert it to JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from spanreplay.cli.runs.times import format_iso
from spanreplay.model.call import CallRecord, Recording, RootRecord
from spanreplay.model.errors import RunNotFound, SpanreplayError
from spanreplay.recording.catalog import Catalog, RunQuery, RunSummary, find_newest, summarize

LATEST: Final = "latest"
"""Names the newest run wherever a run id is asked for."""
COMPLETIONS_MAX: Final = 30


@contextmanager
def open_catalog() -> Iterator[Catalog]:
    """Open the service at SPANREPLAY_ENDPOINT, else the directory; closed at the end."""
    from spanreplay.recording.source import open_catalog as open_place

    catalog = open_place()
    try:
        yield catalog
    finally:
        catalog.close()


def resolve(catalog: Catalog, run: str) -> str:
    """Replace `latest` by the newest run's id; return any other id stripped and in lower case. Raises: RunNotFound."""
    if run != LATEST:
        return run.strip().lower()
    found = find_newest(catalog, RunQuery())
    if found is None:
        raise RunNotFound("no recorded runs here", hint="record one: spanreplay record -- python agent.py")
    return found.root.run_id


def is_file(source: str) -> bool:
    """Whether a source names a file rather than a run."""
    path = Path(source)
    return path.suffix in (".replay", ".jsonl", ".spool") or path.is_file()


def load(source: str) -> Recording:
    """Load the recording for a file name, a run id or `latest`. Raises: SourceError, ServiceError."""
    if is_file(source):
        from spanreplay.recording.bundle import load_file

        return load_file(Path(source))
    with open_catalog() as catalog:
        return catalog.load(resolve(catalog, source))


def find_call(recording: Recording, number: int) -> CallRecord:
    """The call with this number. Raises: RunNotFound."""
    for call in recording.calls:
        if call.number == number:
            return call
    numbers = f"1 to {len(recording.calls)}" if recording.calls else "none"
    raise RunNotFound(
        f"run {recording.run_id} has no call {number}; its calls are {numbers}",
        hint=f"spanreplay show {recording.run_id}",
    )


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Complete run ids for the shell, newest first; no ids if the catalog can't be read."""
    from click.shell_completion import CompletionItem

    try:
        with open_catalog() as catalog:
            found = catalog.search(RunQuery(limit=COMPLETIONS_MAX, run_id_prefix=incomplete.lower()))
    except (SpanreplayError, OSError):
        found = []
    items = [CompletionItem(s.root.run_id, help=f"{s.root.app} {format_iso(s.root.start_ns)}") for s in found]
    if LATEST.startswith(incomplete):
        items.append(CompletionItem(LATEST))
    return [*items, CompletionItem(incomplete, type="file")]


def parse_json(text: str) -> Any:
    """Parse a recorded request or response; text that is not JSON stays text."""
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def summary_to_json(summary: RunSummary) -> dict[str, Any]:
    """One run for `ls --json`."""
    root = summary.root
    return {
        "run_id": root.run_id,
        "app": root.app,
        "status": summary.status,
        "outcome": root.outcome,
        "started": format_iso(root.start_ns),
        "start_ns": root.start_ns,
        "duration_ms": max(0, root.end_ns - root.start_ns) // 1_000_000,
        "calls": summary.calls,
        "llm_calls": summary.llm_calls,
        "errors": summary.errors,
        "tokens_in": summary.tokens_in,
        "tokens_out": summary.tokens_out,
        "tools": list(summary.tools),
        "user_id": root.user_id,
        "session_id": root.session_id,
        "replay_of": root.replay_of,
        "trace_id": root.trace_id,
    }


def call_to_json(call: CallRecord, link: str = "") -> dict[str, Any]:
    """One call with its whole request and response."""
    return {
        "call": call.number,
        "seq": call.seq,
        "end_seq": call.end_seq,
        "parent": call.parent,
        "kind": call.kind,
        "name": call.name,
        "effect": call.effect,
        "lane": call.lane,
        "index": call.index,
        "outcome": call.outcome,
        "call_id": call.call_id,
        "key": call.key,
        "keyspec": call.keyspec,
        "code": call.code,
        "meta": dict(call.meta),
        "redactions": dict(call.redactions),
        "started": format_iso(call.start_ns),
        "duration_ms": max(0, call.end_ns - call.start_ns) // 1_000_000,
        "trace_id": call.trace_id,
        "span_id": call.span_id,
        "phoenix": link,
        "request": parse_json(call.request),
        "response": parse_json(call.response),
    }


def recording_to_json(recording: Recording, links: Mapping[str, str]) -> dict[str, Any]:
    """A whole run for `show --json`; `links` maps span ids to pages in Phoenix."""
    completeness = recording.completeness()
    root: RootRecord = recording.root
    return {
        "run": {
            **summary_to_json(summarize(recording)),
            "env": dict(root.env),
            "manifest": dict(root.manifest),
            "span_id": root.span_id,
            "phoenix": links.get(root.span_id, ""),
        },
        "completeness": {"is_complete": completeness.is_complete, "reasons": list(completeness.reasons)},
        "calls": [call_to_json(c, links.get(c.span_id, "")) for c in recording.calls],
    }
