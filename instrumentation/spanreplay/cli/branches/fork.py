"""`spanreplay fork`: go on live from a call of a recorded run."""

from __future__ import annotations

import click

from spanreplay.cli.branches.branch import Branch, Terms, branch_options, check_found, grow
from spanreplay.cli.replay import open_source, print_verdict, work_folder
from spanreplay.cli.reports import check_files, write_files
from spanreplay.cli.runs import runs
from spanreplay.cli.terminal import say


@click.command("fork")
@click.argument("source", metavar="RUN", shell_complete=runs.complete_run)
@click.argument("command", metavar="[-- CMD...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--at", type=click.IntRange(1), metavar="N", required=True, help="The first call that is made live.")
@click.option(
    "--set", "patches", multiple=True, metavar="PATCH", help="Change a request, e.g. 'llm[3].temperature = 0'."
)
@branch_options
@click.option("--json", "json_file", metavar="FILE", help="Write the verdict as JSON too; - is standard output.")
@click.pass_context
def fork_command(
    ctx: click.Context,
    /,
    *,
    source: str,
    command: tuple[str, ...],
    at: int,
    patches: tuple[str, ...],
    effects: bool,
    max_cost: float | None,
    prices: tuple[str, ...],
    json_file: str | None,
) -> None:
    """Run an agent from call N of a recorded run on: the calls before are served, and cost nothing.

    What happens is recorded as a new run, which replays like any other and says where it comes from. Code and requests
    may be changed from call N on; if a call before it differs, nothing goes live.

    \b
    spanreplay fork latest --at 5 --set 'llm[3].system += "ask first"' -- python agent.py

    Exit status: the agent's own; 3 if it differs before call N, 4 if a call was refused, 6 if the budget is exceeded.
    """
    files = {"json": json_file}
    check_files(files)
    with work_folder() as folder:
        found = open_source(source, folder)
        agent = check_found(found, command)
        call = runs.find_call(found.recording, at)
        done = grow(agent, found, folder, call, Terms(effects, max_cost, prices), patches=patches)
    finish(ctx, done, files)


def finish(ctx: click.Context, done: Branch, files: dict[str, str | None]) -> None:
    """Print and write the verdict, name the new run, and end with its status."""
    print_verdict(done.verdict)
    write_files(done.verdict, files)
    if done.is_whole:
        say(f"  recorded  {done.run_id}")
    ctx.exit(done.exit_status)
