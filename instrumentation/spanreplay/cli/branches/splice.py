"""`spanreplay splice`: record again only what a change of the code affects."""

from __future__ import annotations

import click

from spanreplay.cli.branches.branch import Terms, branch_options, check_found, grow
from spanreplay.cli.branches.fork import finish
from spanreplay.cli.replay import Source, open_source, work_folder
from spanreplay.cli.reports import check_files
from spanreplay.cli.runs import runs
from spanreplay.cli.terminal import say, working
from spanreplay.cli.variations.trials import Trial, Trials, timeout_option
from spanreplay.model.call import CallRecord
from spanreplay.model.errors import ConfigError, SpanreplayError
from spanreplay.report.shape import Divergence


@click.command("splice")
@click.argument("source", metavar="RUN", shell_complete=runs.complete_run)
@click.argument("command", metavar="[-- CMD...]", nargs=-1, type=click.UNPROCESSED)
@branch_options
@timeout_option
@click.option("--json", "json_file", metavar="FILE", help="Write the verdict as JSON too; - is standard output.")
@click.pass_context
def splice_command(
    ctx: click.Context,
    /,
    *,
    source: str,
    command: tuple[str, ...],
    effects: bool,
    max_cost: float | None,
    prices: tuple[str, ...],
    timeout: int,
    json_file: str | None,
) -> None:
    """Record a run again with today's code: calls before the first that differs are served, and cost nothing.

    A replay finds that call; from there the agent runs live, and the whole is recorded as a new run, which replays
    identical and says which of its calls come from RUN.

    \b
    spanreplay splice latest -- python agent.py

    Exit status: the agent's own; 0 without a new run if nothing differs; 4 if a call was refused, 6 if the budget is
    exceeded.
    """
    files = {"json": json_file}
    check_files(files)
    with work_folder() as folder:
        found = open_source(source, folder)
        agent = check_found(found, command)
        with working("looking for the first call that differs"):
            trial = Trials(agent, found, folder, timeout).replay(())
        call = _find_change(found, trial)
        if call is None:
            say("the code makes the recorded calls: there is nothing to record again")
            return
        say(f"the first call that differs is {call.number} ({call.boundary})")
        done = grow(agent, found, folder, call, Terms(effects, max_cost, prices))
    finish(ctx, done, files)


def _find_change(found: Source, trial: Trial) -> CallRecord | None:
    """The first recorded call that the code makes otherwise, or none. Raises: SpanreplayError if that can't be told."""
    if trial.verdict is None:
        raise SpanreplayError(f"the replay that looks for the change gave no verdict: {trial.why}")
    own = [each for each in trial.verdict["divergences"] if not each["downstream"]]
    numbers = [number for each in own if (number := _number(each))]
    if numbers:
        return runs.find_call(found.recording, min(min(numbers), len(found.recording.calls)))
    if trial.verdict["verdict"] == "identical":
        return None
    raise ConfigError(
        "the replay differs, but no call does, so there is no call to go on from",
        hint="spanreplay replay RUN -- CMD shows the difference; spanreplay record records the whole anew",
    )


def _number(divergence: Divergence) -> int:
    number = divergence.get("call")
    return number if isinstance(number, int) and number > 0 else 0
