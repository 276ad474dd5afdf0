"""`spanreplay ls`: find recorded runs by user, time, tool and outcome."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import click

from spanreplay.cli.runs.run_table import build_table
from spanreplay.cli.runs.runs import open_catalog, summary_to_json
from spanreplay.cli.runs.search import search
from spanreplay.cli.runs.states import RUNNING, WAITING, find_states
from spanreplay.cli.runs.times import span_option, time_option
from spanreplay.cli.terminal import open_console, print_data, print_json, say
from spanreplay.recording.catalog import RUNS_MAX, Catalog, RunQuery, RunSummary

_TRACE: Final = re.compile(r"(?:[0-9a-f]{2}-)?([0-9a-f]{32})(?:-[0-9a-f]{16}-[0-9a-f]{2})?")
WITHIN_NS: Final = 30 * 60 * 1_000_000_000


def read_trace(_context: click.Context, _option: click.Parameter, text: str) -> str:
    """Read a trace id from an id or a whole `traceparent`. Raises: BadParameter."""
    match = _TRACE.fullmatch(text.strip().lower())
    if text and match is None:
        raise click.BadParameter(f"{text!r} is not a trace id: 32 hexadecimal digits, or a traceparent header")
    return match[1] if match else ""


def _of_state(catalog: Catalog, query: RunQuery) -> list[RunSummary]:
    """Find runs that are running or waiting; a catalog only knows them as incomplete."""
    found = search(catalog, replace(query, status="incomplete", limit=RUNS_MAX))
    states = find_states(catalog, found)
    return [s for s in found if states[s.root.run_id] == query.status][: query.limit]


@click.command("ls")
@click.option("--user", "user_id", default="", help="Runs of this user.")
@click.option("--session", "session_id", default="", help="Runs of this session.")
@click.option(
    "--trace",
    "trace_id",
    default="",
    metavar="TRACE_ID",
    callback=read_trace,
    help="Runs of this W3C trace, oldest first: one request through several services.",
)
@click.option("--app", default="", help="Runs of this agent.")
@click.option("--tool", default="", help="Runs that called this tool.")
@click.option(
    "--status",
    type=click.Choice(["ok", "error", "incomplete", RUNNING, WAITING]),
    help="Runs that ended like this, or that are running or waiting.",
)
@click.option(
    "--around",
    type=time_option,
    metavar="TIME",
    help="Started around 09:04, 'yesterday 09:04' or 2026-11-20T09:04.",
)
@click.option(
    "--within",
    type=span_option,
    metavar="LENGTH",
    default="30m",
    show_default=True,
    help="Time before and after --around.",
)
@click.option(
    "--since", type=time_option, metavar="TIME", help="Started at or after this time; 2h means two hours ago."
)
@click.option("--until", type=time_option, metavar="TIME", help="Started at or before this time.")
@click.option("--replays", is_flag=True, help="Also list replays.")
@click.option(
    "--limit",
    type=click.IntRange(1, RUNS_MAX),
    default=50,
    show_default=True,
    help="The largest number of runs to list.",
)
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects, newest first.")
def ls_command(
    *,
    user_id: str,
    session_id: str,
    trace_id: str,
    app: str,
    tool: str,
    status: str | None,
    around: int | None,
    within: int,
    since: int | None,
    until: int | None,
    replays: bool,
    limit: int,
    as_json: bool,
) -> None:
    """Find recorded runs, newest first; with --trace, oldest first.

    \b
    spanreplay ls --user u-17 --around 09:04 --tool delete_accounts
    spanreplay ls --status error --since 7d --json

    STATUS is running, waiting (for a human), or how the run ended. Times are local.
    """
    if around is not None and (since is not None or until is not None):
        raise click.UsageError("--around can't be combined with --since or --until")
    query = RunQuery(
        user_id=user_id,
        session_id=session_id,
        trace_id=trace_id,
        app=app,
        tool=tool,
        status=status or "",
        since_ns=(since or 0) if around is None else around - within,
        until_ns=(until or 0) if around is None else around + within,
        limit=limit,
        include_replays=replays,
    )
    with open_catalog() as catalog:
        found = (_of_state if status in (RUNNING, WAITING) else search)(catalog, query)
        states = find_states(catalog, found)
    if trace_id:
        found.reverse()
    if as_json:
        print_json([{**summary_to_json(s), "state": states[s.root.run_id]} for s in found])
        return
    if not found:
        say("no matching runs here; spanreplay ls --help shows where it looks")
        return
    console = open_console()
    print_data(build_table(found, states, console.width if console.is_terminal else 0))
    if len(found) == limit:
        say(f"the newest {limit}; use --limit for more")
