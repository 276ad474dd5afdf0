"""`spanreplay doctor`: which parts of an agent would be recorded, and what prevents it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from spanreplay.cli.agent.child import describe_end, run_child
from spanreplay.cli.agent.launch import Agent, build_environ, find_agent
from spanreplay.cli.diagnose import (
    FAIL,
    OFF,
    Finding,
    check_environment,
    check_folder,
    check_python,
    describe_server,
    is_server,
    read_report,
)
from spanreplay.cli.levels import describe_levels, describe_patches
from spanreplay.cli.terminal import open_console, print_data, print_json, say
from spanreplay.model.escape import escape

if TYPE_CHECKING:
    from rich.table import Table

PROBE_TIMEOUT_S: Final = 30
STDERR: Final = 2
_MARK: Final = {"ok": ("✔", "green"), "warn": ("!", "yellow"), "fail": ("✘", "red"), "off": ("·", "dim")}


def ask_python(agent: Agent) -> dict[str, Any] | None:
    """Ask an agent's Python which packages it has; None if it does not answer."""
    if not agent.python:
        return None
    script = Path(__file__).parent / "agent" / "probe.py"
    try:
        done = subprocess.run(
            [agent.python, str(script)],
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _run_agent(agent: Agent) -> list[Finding]:
    """Run and record the agent, and read the report that its process writes about itself."""
    with tempfile.TemporaryDirectory(prefix="spanreplay-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "doctor.json"
        settings = {"SPANREPLAY_DOCTOR": str(path), "SPANREPLAY_MODE": "record"}
        status = run_child(agent.argv, build_environ(os.environ, settings, is_replay=False), stdout=STDERR)
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            report = None
    found = [*read_report(report), *describe_patches(report)]
    if status != 0:
        found.append(Finding("warn", "agent", f"it {describe_end(status)}"))
    return found


def _build_table(findings: list[Finding]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for finding in findings:
        mark, style = _MARK[finding.level]
        message = Text(escape(finding.message), style="dim" if finding.level == OFF else "")
        if finding.hint:
            message.append(f"\n→ {escape(finding.hint)}", style="dim")
        table.add_row(Text(mark, style=style), Text(escape(finding.subject)), message)
    return table


@click.command("doctor")
@click.argument("command", metavar="[-- CMD...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as an array of objects.")
@click.pass_context
def doctor_command(ctx: click.Context, *, command: tuple[str, ...], as_json: bool) -> None:
    """Check which parts of an agent would be recorded, and what prevents it.

    With CMD the agent is run and recorded, and its covered libraries are listed. A server (gunicorn, uvicorn,
    celery, ...) is not started; doctor says what would be recorded. Without CMD only the environment is checked.
    The agent's output goes to standard error.

    Exit status: 0 if nothing prevents recording, otherwise 1.
    """
    agent = find_agent(command or (sys.executable,))
    findings = [*check_environment(os.environ), *check_folder(Path.cwd()), *check_python(agent, ask_python(agent))]
    findings += describe_levels(os.environ)
    if command and not any(f.level == FAIL and f.subject == "agent" for f in findings):
        findings += describe_server(agent) if is_server(agent) else _run_agent(agent)
    if as_json:
        print_json([asdict(f) for f in findings])
    else:
        print_data(_build_table(findings))
    failures = sum(f.level == FAIL for f in findings)
    if failures:
        say(f"{failures} problems found" if failures > 1 else "one problem found")
    elif open_console().is_terminal:
        say("no problems found")
    ctx.exit(1 if failures else 0)
