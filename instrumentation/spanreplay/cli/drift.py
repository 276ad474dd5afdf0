"""`spanreplay drift`: equal requests that another model or serving stack answers, or that get different answers."""

from __future__ import annotations

from typing import Any, Final

import click

from spanreplay.cli.runs.runs import open_catalog
from spanreplay.cli.runs.times import format_iso, format_local, time_option
from spanreplay.cli.terminal import echo, print_json, say
from spanreplay.model.serving_stack import STATED
from spanreplay.recording.catalog import Catalog
from spanreplay.recording.model_drift import (
    Answer,
    DriftEvent,
    DriftQuery,
    DriftReport,
    DriftScan,
    OutputDrift,
    StackAnswers,
    fold_recordings,
    report_drift,
)
from spanreplay.report.words import plural

SCHEMA: Final = "drift/1"
EVENT: Final = "model_drift"
DRIFTED: Final = 3
OUTPUTS_SHOWN_MAX: Final = 50
RUN_CHARACTERS: Final = 13
KEY_CHARACTERS: Final = 12
STATED_CHARACTERS_MAX: Final = 256


def scan(catalog: Catalog, query: DriftQuery) -> DriftScan:
    """Ask a service; for a directory, read its runs one by one."""
    ask = getattr(catalog, "scan_drift", None)
    if ask is not None:
        found: DriftScan = ask(query)
        return found
    from spanreplay.recording.spool import SpoolCatalog

    assert isinstance(catalog, SpoolCatalog)
    return fold_recordings(catalog.iter_recordings(query.since_ns), query)


def _answer_to_json(answer: Answer) -> dict[str, Any]:
    return {
        "run_id": answer.run_id,
        "call": answer.call,
        "span_id": answer.span_id,
        "started": format_iso(answer.start_ns),
        "output": answer.output,
    }


def _side_to_json(stack: StackAnswers) -> dict[str, Any]:
    return {**_answer_to_json(stack.first), **stack.stated}


def event_to_json(event: DriftEvent) -> dict[str, Any]:
    """One event as JSON, with both spans and the values that their servers stated."""
    return {
        "event": EVENT,
        "boundary": event.after.boundary,
        "model": event.after.model,
        "changed": list(event.changed),
        "keys": event.keys,
        "before": _side_to_json(event.before),
        "after": _side_to_json(event.after),
    }


def _output_to_json(output: OutputDrift) -> dict[str, Any]:
    return {
        "key": output.key,
        "boundary": output.boundary,
        "model": output.model,
        "temperature": output.temperature,
        "answers": output.answers,
        "outputs": output.outputs,
        "cause": output.cause,
        "pair": [_answer_to_json(each) for each in output.pair],
    }


def _to_json(report: DriftReport) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "runs": report.scan.runs,
        "answers": report.scan.answers,
        "keys": report.scan.keys,
        "keys_left_out": report.scan.left_out,
        "events": [event_to_json(each) for each in report.events],
        "outputs": [_output_to_json(each) for each in report.outputs],
    }


def _place(answer: Answer) -> str:
    return f"run {answer.run_id[:RUN_CHARACTERS]} call {answer.call}"


def _event_lines(event: DriftEvent) -> list[str]:
    changed = [label for name, label in STATED if name in event.changed]
    where = f"{event.after.boundary} {event.after.model}".rstrip()
    lines = [f"{EVENT}  {where}: {' and '.join(changed)} changed, {plural(event.keys, 'equal request')}"]
    for word, stack in (("before", event.before), ("after", event.after)):
        lines.append(f"  {word:<7} {_place(stack.first)}, {format_local(stack.first.start_ns)}")
        for name, label in STATED:
            value = stack.stated[name][:STATED_CHARACTERS_MAX]
            lines.append(f"          {label:<26}{value or 'not stated'}")
    return lines


def _output_lines(report: DriftReport) -> list[str]:
    lines = [f"{plural(len(report.outputs), 'request')} with more than one output"]
    for each in report.outputs[:OUTPUTS_SHOWN_MAX]:
        temperature = "not set" if each.temperature is None else f"{each.temperature:g}"
        lines.append(
            f"  {each.key[:KEY_CHARACTERS]}  {f'{each.boundary} {each.model}'.rstrip()}, temperature {temperature}: "
            f"{plural(each.answers, 'answer')}, {plural(each.outputs, 'output')}, cause: {each.cause}"
        )
        lines.append(f"  {'':<{KEY_CHARACTERS}}  {_place(each.pair[0])} and {_place(each.pair[1])} differ")
    if len(report.outputs) > OUTPUTS_SHOWN_MAX:
        lines.append(f"  and {len(report.outputs) - OUTPUTS_SHOWN_MAX:,} more; --json has them")
    return lines


@click.command("drift")
@click.option(
    "--since",
    type=time_option,
    metavar="TIME",
    default="7d",
    show_default=True,
    help="Runs that began at or after this time.",
)
@click.option("--until", type=time_option, metavar="TIME", help="Runs that began at or before this time.")
@click.option("--app", default="", help="Runs of this agent.")
@click.option("--replays", is_flag=True, help="Include replays: their live calls ask the model again.")
@click.option("--json", "as_json", is_flag=True, help="Print one object: events and outputs.")
@click.pass_context
def drift_command(
    ctx: click.Context, /, *, since: int, until: int | None, app: str, replays: bool, as_json: bool
) -> None:
    """Find model drift: equal requests that another model, fingerprint or serving stack now answers.

    A model_drift event names the first call that the new one answered, and one before it. Requests with more than
    one output are listed with their cause: sampling (the temperature is above zero or not set), model, fingerprint or
    determinism (each of them always gives the same output), or unexplained (the same serving stack at temperature
    zero).

    \b
    spanreplay drift --since 7d
    spanreplay drift --since 30d --app refund-agent --json

    Exit status: 0 no model drift, 1 error, 2 wrong usage, 3 model drift.
    """
    query = DriftQuery(since_ns=since, until_ns=until or 0, app=app, include_replays=replays)
    with open_catalog() as catalog:
        report = report_drift(scan(catalog, query))
    if as_json:
        print_json(_to_json(report))
    else:
        lines = [line for event in report.events for line in _event_lines(event)]
        lines += _output_lines(report) if report.outputs else []
        for line in lines:
            echo(line)
        looked = report.scan
        say(
            f"{plural(len(report.events), 'model_drift event')}; looked at {plural(looked.answers, 'answer')} to "
            f"{plural(looked.keys, 'request')} in {plural(looked.runs, 'run')}"
        )
        if looked.left_out:
            say(f"{plural(looked.left_out, 'request')} left out: narrow the search with --since, --until or --app")
    ctx.exit(DRIFTED if report.events else 0)
