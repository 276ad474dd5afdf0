"""`spanreplay record`: run an agent and record it, whatever else is configured."""

from __future__ import annotations

import os
import time
from typing import Final

import click

from spanreplay.activate.summary import describe_no_call
from spanreplay.cli.agent.child import as_shell_status, run_child
from spanreplay.cli.agent.launch import build_environ, choose_hash_seed, find_agent
from spanreplay.cli.terminal import say
from spanreplay.model import config
from spanreplay.model.errors import SpanreplayError
from spanreplay.recording.catalog import RunQuery
from spanreplay.recording.spool.target import read_target

RUNS_SAID_MAX: Final = 3


def _say_recorded(since_ns: int, status: int) -> None:
    """Name the runs that were just recorded here, or say why there is none."""
    from spanreplay.recording.spool import SpoolCatalog

    try:
        catalog = SpoolCatalog(config.read_data_dir())
        found = catalog.search(RunQuery(since_ns=since_ns, limit=RUNS_SAID_MAX))
        catalog.close()
    except (SpanreplayError, OSError) as exc:
        say(f"spanreplay: {exc}")
        return
    for summary in reversed(found):
        calls = "1 call" if summary.calls == 1 else f"{summary.calls} calls"
        say(f"recorded {calls} in run {summary.root.run_id}; see them: spanreplay show {summary.root.run_id}")
    if not found:
        say(f"{describe_no_call(as_shell_status(status))}; `spanreplay doctor -- CMD` shows what is recorded")


@click.command("record")
@click.argument("command", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def record_command(ctx: click.Context, *, command: tuple[str, ...]) -> None:
    """Run an agent and record it; CMD is the agent's whole command.

    Does what opentelemetry-instrument does, with settings under which OpenTelemetry's own configuration cannot fail.
    Ends with the agent's exit status. PYTHONHASHSEED is chosen where it is not set, so that sets of texts have the same
    order in a replay.

    \b
    spanreplay record -- python agent.py
    """
    agent = find_agent(command)
    if agent.is_isolated:
        say(f"spanreplay: Python runs with -{agent.python_flags} and loads no spanreplay: nothing is recorded")
    since_ns = time.time_ns()
    # What is sent to a collector is not here afterwards: then the process says what it has recorded
    is_sent = read_target() is not None
    settings = {
        "SPANREPLAY_MODE": "record",
        "SPANREPLAY_SUMMARY": os.environ.get("SPANREPLAY_SUMMARY") or "always" if is_sent else "never",
    }
    environ = build_environ(os.environ, settings, is_replay=False, hash_seed=choose_hash_seed())
    status = run_child(agent.argv, environ)
    if not is_sent:
        _say_recorded(since_ns, status)
    ctx.exit(as_shell_status(status))
