"""`spanreplay erase`: remove runs for good, by their id, by user, by session or by age."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Final

import click

from spanreplay.cli.runs.runs import complete_run, open_catalog, resolve
from spanreplay.cli.runs.search import redact_name
from spanreplay.cli.runs.times import time_option
from spanreplay.cli.terminal import echo, print_json, say
from spanreplay.recording.catalog import Erased, Erasure

SHOWN_MAX: Final = 10


@click.command("erase")
@click.argument("run_ids", metavar="[RUN]...", nargs=-1, shell_complete=complete_run)
@click.option("--user", "users", multiple=True, metavar="USER", help="All runs of this user.")
@click.option("--session", "sessions", multiple=True, metavar="SESSION", help="All runs of this session.")
@click.option(
    "--before",
    type=time_option,
    metavar="TIME",
    help="All runs of this directory that ended before: 30d means 30 days ago. Runs that failed stay.",
)
@click.option("--failures", is_flag=True, help="With --before: remove runs that failed, too.")
@click.option("--dry-run", is_flag=True, help="Only say what would be erased.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--json", "as_json", is_flag=True, help="Print the ids of the runs as JSON.")
def erase_command(
    *,
    run_ids: tuple[str, ...],
    users: tuple[str, ...],
    sessions: tuple[str, ...],
    before: int | None,
    failures: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove runs for good, here or at the service in SPANREPLAY_ENDPOINT.

    The replays of a run and the runs that its processes started are removed with it. A service needs a token that
    may erase; it refuses what arrives of an erased run later, and removes its trace from Phoenix.
    """
    if not (run_ids or users or sessions or before):
        raise click.UsageError("name what to erase: a RUN, --user, --session or --before")
    if "" in (*users, *sessions):
        raise click.UsageError("--user and --session need a name")
    if failures and not before:
        raise click.UsageError("--failures goes with --before")
    with open_catalog() as catalog:
        chosen = Erasure(
            tuple(resolve(catalog, run) for run in run_ids),
            tuple(dict.fromkeys((*users, *map(redact_name, users)))),
            tuple(dict.fromkeys((*sessions, *map(redact_name, sessions)))),
            before or 0,
            failures,
        )
        found = catalog.erase(chosen, is_trial=True)
        if found.run_ids and not dry_run:
            if not yes:
                _ask(found)
            # By id: a run that began meanwhile is not removed unasked.
            found = catalog.erase(replace(chosen, run_ids=found.run_ids, user_ids=(), session_ids=(), before_ns=0))
    _report(found, is_trial=dry_run, as_json=as_json)


def _ask(found: Erased) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"this erases {_count(found)}: say --yes, or look first with --dry-run")
    click.confirm(f"Erase {_count(found)} for good?", abort=True, err=True)


def _report(found: Erased, *, is_trial: bool, as_json: bool) -> None:
    if as_json:
        print_json({"erased": [] if is_trial else list(found.run_ids), "found": list(found.run_ids)})
    else:
        for run_id in found.run_ids[:SHOWN_MAX]:
            echo(run_id)
        if len(found.run_ids) > SHOWN_MAX:
            echo(f"… and {len(found.run_ids) - SHOWN_MAX} more")
    if not found.run_ids:
        say("nothing to erase")
    else:
        say(f"{'would erase' if is_trial else 'erased'} {_count(found)}")
    if found.is_shown and found.run_ids and not is_trial:
        say("Phoenix may still show them: the service's log says why; delete their traces there")


def _count(found: Erased) -> str:
    return "1 run" if len(found.run_ids) == 1 else f"{len(found.run_ids)} runs"
