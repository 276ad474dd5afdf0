"""`spanreplay record`: run an agent and record it, whatever else is configured."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from spanreplay.activate.summary import describe_no_call
from spanreplay.cli.agent.child import as_shell_status, run_child
from spanreplay.cli.agent.launch import build_environ, choose_hash_seed, find_agent
from spanreplay.cli.export import ELSEWHERE
from spanreplay.cli.replay import STDERR
from spanreplay.cli.runs.runs import summary_to_json
from spanreplay.cli.terminal import print_json, say
from spanreplay.model import config
from spanreplay.model.errors import SpanreplayError
from spanreplay.recording.catalog import RunQuery, RunSummary
from spanreplay.recording.spool.target import read_target
from spanreplay.recording.whole_file import write_atomically

RUNS_SAID_MAX: Final = 3
RUNS_MAX: Final = 1_000


def _find_recorded(since_ns: int) -> list[RunSummary]:
    """Find the runs that were just recorded here, oldest first. Raises: SpanreplayError, OSError."""
    from spanreplay.recording.spool import SpoolCatalog

    catalog = SpoolCatalog(config.read_data_dir())
    try:
        return [*reversed(catalog.search(RunQuery(since_ns=since_ns, limit=RUNS_MAX)))]
    finally:
        catalog.close()


def _say_recorded(found: Sequence[RunSummary], status: int) -> None:
    """Print the runs that were just recorded here, or why there are none."""
    for summary in found[-RUNS_SAID_MAX:]:
        calls = "1 call" if summary.calls == 1 else f"{summary.calls} calls"
        say(f"recorded {calls} in run {summary.root.run_id}; see them: spanreplay show {summary.root.run_id}")
    if not found:
        say(f"{describe_no_call(as_shell_status(status))}; `spanreplay doctor -- CMD` shows what is recorded")


def _write(file: str, found: Sequence[RunSummary], status: int) -> None:
    """Write the runs as JSON to a file or standard output. Raises: ConfigError."""
    value = {"status": as_shell_status(status), "runs": [summary_to_json(summary) for summary in found]}
    if file == "-":
        print_json(value)
    else:
        write_atomically(Path(file), json.dumps(value, indent=2).encode(), hint=ELSEWHERE)


@click.command("record")
@click.argument("command", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Write the runs recorded here as JSON; - is standard output, and the agent's output goes to standard error.",
)
@click.pass_context
def record_command(ctx: click.Context, *, command: tuple[str, ...], json_file: str | None) -> None:
    """Run an agent and record it; CMD is the agent's whole command.

    Works like opentelemetry-instrument, with settings under which OpenTelemetry's own configuration cannot fail.
    Exits with the agent's exit status. Sets PYTHONHASHSEED if it is not set, so that sets of strings have the same
    order in a replay on any machine.

    \b
    spanreplay record -- python agent.py
    """
    agent = find_agent(command)
    if agent.is_isolated:
        say(f"spanreplay: Python runs with -{agent.python_flags}, so it does not load spanreplay: nothing is recorded")
    since_ns = time.time_ns()
    # Runs that are sent to a collector are not here afterwards, so the process itself prints the summary
    is_sent = read_target() is not None
    settings = {
        "SPANREPLAY_MODE": "record",
        "SPANREPLAY_SUMMARY": os.environ.get("SPANREPLAY_SUMMARY") or "always" if is_sent else "never",
    }
    environ = build_environ(os.environ, settings, is_replay=False, hash_seed=choose_hash_seed())
    status = run_child(agent.argv, environ, stdout=STDERR if json_file == "-" else None)
    found: list[RunSummary] = []
    if not is_sent or json_file:
        try:
            found = _find_recorded(since_ns)
        except (SpanreplayError, OSError) as exc:
            say(f"spanreplay: {exc}")
        else:
            if not is_sent:
                _say_recorded(found, status)
    if json_file:
        _write(json_file, found, status)
    ctx.exit(as_shell_status(status))
