"""`spanreplay conformance`: judge the spans of an SDK in another language, and print the cases for its client."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from spanreplay.cli.runs.runs import complete_run, is_file, open_catalog, resolve
from spanreplay.cli.terminal import echo, print_json, working
from spanreplay.model.errors import RunNotFound
from spanreplay.report.words import plural

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from spanreplay.recording.conformance.exported import ExportedRun
    from spanreplay.recording.conformance.rules import Judged

SCHEMA: Final = "conformance/1"
BROKEN: Final = 3
_PROTOCOL_FILES: Final = (".json", ".pb", ".bin", ".binpb")


@click.command("conformance")
@click.argument("run", required=False, shell_complete=complete_run)
@click.option("--cases", is_flag=True, help="Print the cases that a client for replays plays, as JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def conformance_command(ctx: click.Context, *, run: str | None, cases: bool, as_json: bool) -> None:
    """Judge whether spans of an SDK in any language make a replayable run, rule by rule.

    RUN is a recorded run, a .replay file, or a file of exported spans: OTLP/JSON, or the protobuf body of one request.
    For each rule that is broken it says in which span, what is there, and what to do.

    --cases prints what a client in another language is tested with: keys of requests, two runs, what the service
    answers about them, and how calls of a replay are resolved.

    Exit status: 0 every rule is kept, 3 a rule is broken; 1 error, 2 wrong usage.
    """
    if cases:
        if run is not None:
            raise click.UsageError("--cases takes no RUN")
        print_json(load_cases())
        return
    if run is None:
        raise click.UsageError("name a run or a file, or ask for --cases")
    judge_run(ctx, run, as_json=as_json)


def load_cases() -> dict[str, Any]:
    """The cases for clients in other languages."""
    from importlib.resources import files

    text = files("spanreplay.recording.conformance").joinpath("cases.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def judge_run(ctx: click.Context, run: str, *, as_json: bool) -> None:
    """Judge each run of a source, print what was found, and end with the status."""
    from spanreplay.recording.conformance.exported import gather_runs
    from spanreplay.recording.conformance.rules import judge

    with working(f"reading {run}"):
        runs = gather_runs(_read(run))
        if not runs:
            raise RunNotFound(
                f"{run} has no span with an attribute spanreplay.*",
                hint="the contract is described in docs/other-languages.md",
            )
        judged = [(each, judge(each)) for each in runs]
    if as_json:
        print_json({"schema": SCHEMA, "source": run, "runs": [_to_json(each, found) for each, found in judged]})
    else:
        for each, found in judged:
            _print(each, found)
    ctx.exit(0 if all(result.is_kept for _, found in judged for result in found) else BROKEN)


def _read(run: str) -> Iterable[ExportTraceServiceRequest]:
    from spanreplay.recording.bundle import unpack
    from spanreplay.recording.conformance.exported import read_export
    from spanreplay.recording.spool.requests import parse_payload

    if is_file(run) or Path(run).suffix in _PROTOCOL_FILES:
        return read_export(Path(run))
    with open_catalog() as catalog:
        _, payloads = unpack(catalog.export(resolve(catalog, run)))
    return [parse_payload(payload, f"run {run}") for payload in payloads]


def _to_json(run: ExportedRun, judged: Sequence[Judged]) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "calls": len(run.calls),
        "is_replayable": all(each.is_kept for each in judged),
        "rules": [
            {
                "rule": each.rule.name,
                "is_kept": each.is_kept,
                "promise": each.rule.promise,
                "fix": each.rule.fix,
                "findings": [
                    {"where": found.where, "attribute": found.attribute, "what": found.what} for found in each.findings
                ],
                "more": each.more,
            }
            for each in judged
        ],
    }


def _print(run: ExportedRun, judged: Sequence[Judged]) -> None:
    broken = [each for each in judged if not each.is_kept]
    name = f"run {run.run_id or '(no id)'}, {plural(len(run.calls), 'call')}"
    if not broken:
        echo(f"passed  {name}: all {len(judged)} rules are kept", fg="green")
        return
    echo(f"failed  {name}: {len(broken)} of {len(judged)} rules are broken", fg="red")
    for each in broken:
        echo(f"  {each.rule.name}: {each.rule.promise}")
        for found in each.findings:
            echo(f"    {found.where}: {f'{found.attribute} ' if found.attribute else ''}{found.what}")
        if each.more:
            echo(f"    and {each.more} more")
        echo(f"    fix: {each.rule.fix}")
