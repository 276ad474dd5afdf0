"""`spanreplay replay`: run an agent against a recording, and tell what differs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from spanreplay import config
from spanreplay.call import Completeness
from spanreplay.catalog import Catalog
from spanreplay.cli import runs
from spanreplay.cli.child import describe_end, run_child
from spanreplay.cli.launch import build_environ, check_not_isolated, find_agent
from spanreplay.cli.reports import check_files, write_files, write_github
from spanreplay.cli.settle import settle
from spanreplay.cli.terminal import open_console, say
from spanreplay.errors import SpanreplayError
from spanreplay.report.json import dump, parse
from spanreplay.report.shape import EXIT_STATUS, Verdict

REASONS_SAID_MAX: Final = 3


@dataclass(frozen=True)
class Source:
    """A recording that a child process can find: what to tell it, and whether the recording is whole."""

    name: str
    completeness: Completeness
    is_at_service: bool = False


def _from_catalog(catalog: Catalog, run: str, folder: Path, *, is_at_service: bool) -> Source:
    run_id = runs.resolve(catalog, run)
    recording = catalog.load(run_id)
    if is_at_service:
        return Source(recording.run_id, recording.completeness(), is_at_service=True)
    # One file that the child reads at once: nothing that happens to the directory changes the replay.
    path = folder / f"{recording.run_id}.replay"
    path.write_bytes(catalog.export(recording.run_id))
    return Source(str(path), recording.completeness())


def open_source(source: str, folder: Path) -> Source:
    """Find the recording that a file name, a run id or `latest` names. Raises: SourceError, ServiceError."""
    if runs.is_file(source):
        from spanreplay.bundle import load_file

        path = Path(source).absolute()
        return Source(str(path), load_file(path).completeness())
    is_at_service = bool(config.read_setting("SPANREPLAY_ENDPOINT"))
    with runs.open_catalog() as catalog:
        return _from_catalog(catalog, source, folder, is_at_service=is_at_service)


@contextmanager
def _work_folder() -> Iterator[Path]:
    """A private folder for the recording and the verdict; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="spanreplay-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _read_verdict(path: Path, status: int) -> Verdict:
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        content = ""
    if not content:
        raise SpanreplayError(
            f"there is no verdict: the agent {describe_end(status)} before its replay could tell one",
            hint="see what it wrote above; `spanreplay doctor -- CMD` tells whether its Python can replay",
        )
    return parse(content)


def _report(verdict: Verdict) -> None:
    """State the verdict to the service; a service that cannot take it changes nothing."""
    try:
        with runs.open_catalog() as catalog:
            report_replay = getattr(catalog, "report_replay", None)
            if report_replay is None:
                return
            url = report_replay(
                run_id=verdict["run_id"],
                replay_run_id=verdict.get("replay_run_id", ""),
                verdict=verdict["verdict"],
                report=dump(verdict),
            )
    except SpanreplayError as exc:
        say(f"the verdict was not reported: {exc}")
        return
    if url:
        say(f"  Phoenix   {url}")


def _print(verdict: Verdict) -> None:
    from spanreplay.report.text import render

    open_console(stderr=True).print(render(verdict), soft_wrap=True)


def _warn_incomplete(completeness: Completeness) -> None:
    if not completeness.is_complete:
        reasons = "; ".join(completeness.reasons[:REASONS_SAID_MAX])
        say(f"the recording is incomplete, so it is replayed up to where it ends ({reasons})")


@click.command("replay")
@click.argument("source", metavar="RUN", shell_complete=runs.complete_run)
@click.argument("command", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--stub", multiple=True, metavar="GLOB", help="Serve these from the recording, e.g. 'llm:*'.")
@click.option("--live", multiple=True, metavar="GLOB", help="Let these run live, e.g. 'tool:get_*'.")
@click.option(
    "--on-change",
    type=click.Choice(["stop", "serve", "live"]),
    default="stop",
    show_default=True,
    help="A call that differs: stop there, serve the recorded answer, or go live.",
)
@click.option("--json", "json_file", metavar="FILE", help="Write the verdict as JSON too; - is standard output.")
@click.option("--junit", "junit_file", metavar="FILE", help="Write it as JUnit XML.")
@click.option("--sarif", "sarif_file", metavar="FILE", help="Write it as SARIF 2.1.0.")
@click.option("--html", "html_file", metavar="FILE", help="Write it as one HTML page.")
@click.option("--github", is_flag=True, help="Annotate the code and write the step summary in GitHub Actions.")
@click.pass_context
def replay_command(
    ctx: click.Context,
    *,
    source: str,
    command: tuple[str, ...],
    stub: tuple[str, ...],
    live: tuple[str, ...],
    on_change: str,
    json_file: str | None,
    junit_file: str | None,
    sarif_file: str | None,
    html_file: str | None,
    github: bool,
) -> None:
    """Run an agent against a recording: no model is called and nothing outside is touched.

    RUN is a run id or its beginning, `latest`, or a .replay file. CMD is the agent's whole command. What the
    agent prints passes through; the verdict goes to standard error.

    \b
    spanreplay replay latest -- python agent.py
    spanreplay replay incident.replay --live 'tool:get_*' -- python agent.py

    Exit status: 0 identical, 1 error, 2 wrong usage, 3 diverged, 4 incomplete recording, 5 tampered.
    """
    from spanreplay.replay.plan import build_plan

    files = {"json": json_file, "junit": junit_file, "sarif": sarif_file, "html": html_file}
    check_files(files)
    plan = build_plan(stub=stub, live=live, on_change=on_change)
    agent = find_agent(command)
    check_not_isolated(agent)
    with _work_folder() as folder:
        found = open_source(source, folder)
        _warn_incomplete(found.completeness)
        report_path = folder / "verdict.json"
        settings = {
            "SPANREPLAY_MODE": "replay",
            "SPANREPLAY_REPLAY_SOURCE": found.name,
            "SPANREPLAY_REPLAY_PLAN": plan.to_json(),
            "SPANREPLAY_REPLAY_REPORT": str(report_path),
            "SPANREPLAY_REPLAY_PID": "",
        }
        status = run_child(agent.argv, build_environ(os.environ, settings, is_replay=True))
        verdict = settle(_read_verdict(report_path, status), status, found.completeness)
    _print(verdict)
    write_files(verdict, files)
    if github:
        write_github(verdict)
    if found.is_at_service and verdict["verdict"] != "error":
        _report(verdict)
    ctx.exit(EXIT_STATUS[verdict["verdict"]])
