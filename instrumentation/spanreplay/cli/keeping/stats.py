"""`spanreplay stats`: what each kind of boundary costs to record, in bytes and in CPU time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from spanreplay.cli.runs.runs import complete_run, open_catalog, resolve
from spanreplay.cli.runs.times import time_option
from spanreplay.cli.terminal import echo, print_json, say, working
from spanreplay.model.call import CallRecord, Recording
from spanreplay.model.errors import RunNotFound
from spanreplay.model.escape import escape
from spanreplay.model.json_text import load
from spanreplay.recording.catalog import RunQuery

if TYPE_CHECKING:
    from spanreplay.redact import Redactor

RUNS_MAX: Final = 1000
_FIRST: Final = 100
ROOT: Final = "run"
"""The row of what belongs to no call: environment, output, files, order."""


@dataclass
class Cost:
    """What the calls of one group cost; `cpu_us` is that of redacting and encoding them again here."""

    calls: int = 0
    bytes: int = 0
    cpu_us: float = 0.0


@click.command("stats")
@click.argument("run_ids", metavar="[RUN]...", nargs=-1, shell_complete=complete_run)
@click.option("--by-boundary", is_flag=True, help="A row for each boundary (tool:refund), not for each kind (tool).")
@click.option(
    "--since", type=time_option, metavar="TIME", help="Without RUN: runs since this time; 2h means two hours ago."
)
@click.option(
    "--limit", type=click.IntRange(1, RUNS_MAX), default=50, show_default=True, help="The largest number of runs."
)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as an object.")
def stats_command(*, run_ids: tuple[str, ...], by_boundary: bool, since: int | None, limit: int, as_json: bool) -> None:
    """Show what recording costs: calls, bytes and CPU time of each kind of boundary; default: the newest runs.

    Bytes are those of the records, before the store compresses them. CPU time is measured here, by redacting and
    encoding each call again in its run's order: what the recorder does for a call, without the agent's own work.
    """
    with open_catalog() as catalog, working("reading runs"):
        if run_ids:
            chosen = [resolve(catalog, run_id) for run_id in run_ids]
        else:
            chosen = [found.root.run_id for found in catalog.search(RunQuery(since_ns=since or 0, limit=limit))]
        if not chosen:
            raise RunNotFound("no recorded runs here", hint="record one: spanreplay record -- python agent.py")
        rows = measure((catalog.load(run_id) for run_id in chosen), by_boundary=by_boundary)
    if as_json:
        print_json({"runs": len(chosen), "rows": {name: _describe(cost) for name, cost in rows.items()}})
        return
    for line in _lay_out(rows):
        echo(line)
    say(f"{len(chosen):,} {'run' if len(chosen) == 1 else 'runs'}; CPU time as measured on this machine, now")


def measure(recordings: Iterable[Recording], *, by_boundary: bool) -> dict[str, Cost]:
    """The cost of each group, the largest first."""
    from spanreplay.redact import Redactor
    from spanreplay.redact.tokens import KEY_BYTES, key_id_of

    key = os.urandom(KEY_BYTES)
    redactor = Redactor(key, key_id_of(key))
    rows: dict[str, Cost] = {}
    for number, recording in enumerate(recordings):
        if not number:  # what is loaded and compiled at the first call is no call's cost
            first = Recording(recording.root, recording.calls[:_FIRST])
            _measure_run(first, redactor, {}, by_boundary=by_boundary)
        _measure_run(recording, redactor, rows, by_boundary=by_boundary)
    return dict(sorted(rows.items(), key=lambda row: (-row[1].bytes, row[0])))


def _measure_run(recording: Recording, redactors: Redactor, rows: dict[str, Cost], *, by_boundary: bool) -> None:
    from opentelemetry.sdk.resources import Resource

    from spanreplay.recording.derived import encode_root
    from spanreplay.recording.spans import build_span
    from spanreplay.recording.spool.encode import encode_span

    redactor, resource = redactors.run(), Resource({})
    for call in recording.calls:
        contents = [_read(text) for text in (call.request, call.response)]
        begun = time.thread_time_ns()
        for content in contents:
            redactor.value(content)
        record = encode_span(build_span(call, is_shown=False, is_parent_remote=False, resource=resource))
        spent = time.thread_time_ns() - begun
        _add(rows, _name(call, by_boundary=by_boundary), len(record), spent)
    begun = time.thread_time_ns()
    root = encode_root(recording.root, resource)
    _add(rows, ROOT, len(root), time.thread_time_ns() - begun)


def _name(call: CallRecord, *, by_boundary: bool) -> str:
    return call.boundary if by_boundary else call.kind


def _read(text: str) -> Any:
    try:
        return load(text)
    except ValueError:
        return text


def _add(rows: dict[str, Cost], name: str, size: int, spent_ns: int) -> None:
    cost = rows.setdefault(name, Cost())
    cost.calls += 1
    cost.bytes += size
    cost.cpu_us += spent_ns / 1000


def _describe(cost: Cost) -> dict[str, Any]:
    return {**asdict(cost), "cpu_us": round(cost.cpu_us, 1), "cpu_us_per_call": round(cost.cpu_us / cost.calls, 1)}


def _lay_out(rows: dict[str, Cost]) -> Iterable[str]:
    whole = sum(cost.bytes for cost in rows.values()) or 1
    names = [escape(name) for name in rows]
    width = max(len("BOUNDARY"), *map(len, names))
    yield f"{'BOUNDARY':<{width}}  {'CALLS':>9}  {'BYTES':>13}  {'SHARE':>6}  {'BYTES/CALL':>10}  {'US/CALL':>9}"
    for name, cost in zip(names, rows.values(), strict=True):
        share, each = f"{100 * cost.bytes / whole:.1f}%", f"{cost.bytes // cost.calls:,}"
        spent = f"{cost.cpu_us / cost.calls:,.1f}"
        yield f"{name:<{width}}  {cost.calls:>9,}  {cost.bytes:>13,}  {share:>6}  {each:>10}  {spent:>9}"
