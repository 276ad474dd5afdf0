"""`spanreplay ls`: find recorded runs by user, time, tool and outcome."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from spanreplay import config
from spanreplay.catalog import RUNS_MAX, Catalog, RunQuery, RunSummary
from spanreplay.cli.runs import open_catalog, summary_to_json
from spanreplay.cli.terminal import open_console, print_data, print_json, say
from spanreplay.cli.times import format_duration, format_local, span_option, time_option
from spanreplay.descent import is_child
from spanreplay.report.escape import shorten

if TYPE_CHECKING:
    from rich.table import Table

WITHIN_NS: Final = 30 * 60 * 1_000_000_000
RUN_ID_CHARACTERS_MIN: Final = 13
"""A UUIDv7's first 13 characters are its millisecond and version."""
TOOLS_CHARACTERS_MAX: Final = 48
_STATUS_STYLE: Final = {"ok": "green", "error": "red", "incomplete": "yellow"}


def short_ids(run_ids: list[str]) -> dict[str, str]:
    """Run id → its shortest prefix that is unique among these, at least 13 characters; pure."""
    shortened = {}
    ordered = sorted(set(run_ids))
    for i, run_id in enumerate(ordered):
        shared = 0
        for neighbour in ordered[max(0, i - 1) : i] + ordered[i + 1 : i + 2]:
            pairs = zip(run_id, neighbour, strict=False)
            same = next((n for n, (mine, other) in enumerate(pairs) if mine != other), len(run_id))
            shared = max(shared, same)
        shortened[run_id] = run_id[: max(RUN_ID_CHARACTERS_MIN, shared + 1)]
    return shortened


def _redacted(text: str) -> str:
    """The text as this directory's recordings hold it: a user's e-mail address is stored as its token."""
    named = config.read_setting("SPANREPLAY_REDACT_KEY")
    path = Path(named) if named else config.read_data_dir() / "redact.key"
    if not text or not path.is_file():
        return text
    from spanreplay.redact import Redactor, load_or_create_key

    return Redactor(*load_or_create_key(path)).run().text(text)


def search(catalog: Catalog, query: RunQuery) -> list[RunSummary]:
    """Matching runs, newest first; names are also looked for in their redacted form."""
    found = catalog.search(query)
    redacted = replace(query, user_id=_redacted(query.user_id), session_id=_redacted(query.session_id))
    if redacted != query:
        found = [*found, *catalog.search(redacted)]
        found.sort(key=lambda s: s.root.start_ns, reverse=True)
    return found[: query.limit]


def _build_table(found: list[RunSummary], *, is_terminal: bool) -> Table:
    from rich.table import Table
    from rich.text import Text

    ids = short_ids([s.root.run_id for s in found])
    table = Table(box=None, pad_edge=False, header_style="bold" if is_terminal else "", show_edge=False)
    for name, justify in (
        ("RUN", "left"),
        ("STARTED", "left"),
        ("APP", "left"),
        ("STATUS", "left"),
        ("CALLS", "right"),
        ("TOKENS", "right"),
        ("TIME", "right"),
        ("USER", "left"),
        ("TOOLS", "left"),
    ):
        table.add_column(name, justify="right" if justify == "right" else "left", no_wrap=True)
    for summary in found:
        root = summary.root
        table.add_row(
            ids[root.run_id] if is_terminal else root.run_id,
            format_local(root.start_ns),
            Text(shorten(root.app, 32) + (" (replay)" if root.replay_of else " (child)" if is_child(root) else "")),
            Text(summary.status, style=_STATUS_STYLE.get(summary.status, "")),
            f"{summary.calls}",
            f"{summary.tokens_in + summary.tokens_out:,}",
            format_duration(max(0, root.end_ns - root.start_ns)),
            Text(shorten(root.user_id, 32)),
            Text(shorten(", ".join(summary.tools), TOOLS_CHARACTERS_MAX)),
        )
    return table


@click.command("ls")
@click.option("--user", "user_id", default="", help="Runs of this user.")
@click.option("--session", "session_id", default="", help="Runs of this session.")
@click.option("--app", default="", help="Runs of this agent.")
@click.option("--tool", default="", help="Runs that called this tool.")
@click.option("--status", type=click.Choice(["ok", "error", "incomplete"]), help="How the run ended.")
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
    help="How far around --around.",
)
@click.option("--since", type=time_option, metavar="TIME", help="Started at or after this time; 2h and 7d are ago.")
@click.option("--until", type=time_option, metavar="TIME", help="Started at or before this time.")
@click.option("--replays", is_flag=True, help="List replays too.")
@click.option("--limit", type=click.IntRange(1, RUNS_MAX), default=50, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="Print an array of objects, newest first.")
def ls_command(
    *,
    user_id: str,
    session_id: str,
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
    """Find recorded runs, newest first.

    \b
    spanreplay ls --user u-17 --around 09:04 --tool delete_accounts
    spanreplay ls --status error --since 7d --json
    """
    if around is not None and (since is not None or until is not None):
        raise click.UsageError("--around stands alone: leave out --since and --until")
    query = RunQuery(
        user_id=user_id,
        session_id=session_id,
        app=app,
        tool=tool,
        status=status or "",
        since_ns=(since or 0) if around is None else around - within,
        until_ns=(until or 0) if around is None else around + within,
        limit=limit,
        include_replays=replays,
    )
    with open_catalog() as catalog:
        found = search(catalog, query)
    if as_json:
        print_json([summary_to_json(s) for s in found])
        return
    if not found:
        say("no such runs here; spanreplay ls --help says where it looks")
        return
    print_data(_build_table(found, is_terminal=open_console().is_terminal))
    if len(found) == limit:
        say(f"the newest {limit}; --limit shows more")
