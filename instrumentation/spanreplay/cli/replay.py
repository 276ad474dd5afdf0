"""`spanreplay replay`: run an agent against a recording, and tell what differs."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from spanreplay import config
from spanreplay.call import Completeness, Recording
from spanreplay.catalog import Catalog
from spanreplay.cli import runs
from spanreplay.cli.child import describe_end, run_child
from spanreplay.cli.launch import Agent, build_environ, check_not_isolated, find_recorded_agent, recorded_hash_seed
from spanreplay.cli.reports import check_files, write_files, write_github
from spanreplay.cli.settle import settle
from spanreplay.cli.terminal import open_console, say
from spanreplay.errors import SpanreplayError
from spanreplay.report.json import dump, parse
from spanreplay.report.shape import EXIT_STATUS, SCHEMA, Verdict

if TYPE_CHECKING:
    from spanreplay.replay.plan import Plan

REASONS_SAID_MAX: Final = 3


@dataclass(frozen=True)
class Source:
    """A recording that a child process can find: what to tell it, and the recording itself."""

    name: str
    recording: Recording
    is_at_service: bool = False


def _from_catalog(catalog: Catalog, run: str, folder: Path, *, is_at_service: bool) -> Source:
    run_id = runs.resolve(catalog, run)
    recording = catalog.load(run_id)
    if is_at_service:
        return Source(recording.run_id, recording, is_at_service=True)
    # One file that the child reads at once: nothing that happens to the directory changes the replay.
    path = folder / f"{recording.run_id}.replay"
    path.write_bytes(catalog.export(recording.run_id))
    return Source(str(path), recording)


def open_source(source: str, folder: Path) -> Source:
    """Find the recording that a file name, a run id or `latest` names. Raises: SourceError, ServiceError."""
    if runs.is_file(source):
        from spanreplay.bundle import load_file

        path = Path(source).absolute()
        return Source(str(path), load_file(path))
    is_at_service = bool(config.read_setting("SPANREPLAY_ENDPOINT"))
    with runs.open_catalog() as catalog:
        return _from_catalog(catalog, source, folder, is_at_service=is_at_service)


@contextmanager
def work_folder() -> Iterator[Path]:
    """A private folder for the recording and the verdict; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="spanreplay-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _read_verdict(path: Path, status: int) -> Verdict:
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        content = ""
    if not content:
        hint = "`spanreplay doctor -- CMD` tells whether its Python can replay"
        if status == -signal.SIGABRT:
            hint = "a library in native code that may not write a file can end so: SPANREPLAY_SANDBOX=python lets it"
        raise SpanreplayError(
            f"there is no verdict: the agent {describe_end(status)} before its replay could tell one",
            hint=f"see what it wrote above; {hint}",
        )
    return parse(content)


def report_verdict(verdict: Verdict) -> None:
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


def print_verdict(verdict: Verdict) -> None:
    from spanreplay.report.text import render

    open_console(stderr=True).print(render(verdict), soft_wrap=True)


def _warn_incomplete(completeness: Completeness) -> None:
    if not completeness.is_complete:
        reasons = "; ".join(completeness.reasons[:REASONS_SAID_MAX])
        say(f"the recording is incomplete, so it is replayed up to where it ends ({reasons})")


def refuse(recording: Recording) -> Verdict:
    """The verdict of a recording that a strict replay does not begin with: its holes, and how to go on."""
    verdict = {
        "schema": SCHEMA,
        "verdict": "incomplete",
        "run_id": recording.run_id,
        "app": recording.root.app,
        "counts": {"recorded": len(recording.calls)},
        "reasons": list(recording.completeness().reasons),
        "hint": "without --strict it is replayed up to its first hole; --to N ends the replay before call N",
    }
    return parse(json.dumps(verdict))


def run_agent(agent: Agent, found: Source, settings: dict[str, str], folder: Path) -> tuple[Verdict, int]:
    """Replay in a process of its own; the verdict and how the process ended. Raises: SpanreplayError."""
    report_path = folder / "verdict.json"
    told = {
        "SPANREPLAY_MODE": "replay",
        "SPANREPLAY_REPLAY_SOURCE": found.name,
        "SPANREPLAY_REPLAY_REPORT": str(report_path),
        "SPANREPLAY_REPLAY_PID": "",
        **settings,
    }
    seed = recorded_hash_seed(found.recording)
    status = run_child(agent.argv, build_environ(os.environ, told, is_replay=True, hash_seed=seed))
    return _read_verdict(report_path, status), status


@click.command("replay")
@click.argument("source", metavar="RUN", shell_complete=runs.complete_run)
@click.argument("command", metavar="[-- CMD...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--stub", multiple=True, metavar="CALLS", help="Serve these from the recording, e.g. 'llm:*'.")
@click.option("--live", multiple=True, metavar="CALLS", help="Let these run live, e.g. 'tool:get_*' or 'llm[3..]'.")
@click.option(
    "--on-change",
    multiple=True,
    metavar="[CALLS=]stop|serve|live",
    help="A call that differs: stop there (default), serve the recorded answer, or go live.",
)
@click.option(
    "--set", "patches", multiple=True, metavar="PATCH", help="Change a field, e.g. 'llm[3].system += \"ask first\"'."
)
@click.option("--max-cost", type=float, metavar="USD", help="Stop before live calls to models cost more; exit 6.")
@click.option(
    "--price", "prices", multiple=True, metavar="MODEL=IN,OUT", help="US dollars for a million tokens, in and out."
)
@click.option("--strict", is_flag=True, help="Refuse an incomplete recording; stop at a call that has moved.")
@click.option("--strict-env", is_flag=True, help="Deny reads of clock, files and variables that are not recorded.")
@click.option("--to", "stop_at", type=click.IntRange(1), metavar="N", default=None, help="End before recorded call N.")
@click.option("--break", "is_break", is_flag=True, help="With --to N: breakpoint() there instead (PYTHONBREAKPOINT).")
@click.option("--dap", metavar="HOST:PORT", default="", help="Break in an editor that attaches here (needs debugpy).")
@click.option("--step", is_flag=True, help="Show each call at the terminal and wait: next, continue, print, quit.")
@click.option("--json", "json_file", metavar="FILE", help="Write the verdict as JSON too; - is standard output.")
@click.option("--junit", "junit_file", metavar="FILE", help="Write it as JUnit XML.")
@click.option("--sarif", "sarif_file", metavar="FILE", help="Write it as SARIF 2.1.0.")
@click.option("--html", "html_file", metavar="FILE", help="Write it as one HTML page.")
@click.option("--github", is_flag=True, help="Annotate the code and write the step summary in GitHub Actions.")
@click.pass_context
def replay_command(
    ctx: click.Context, /, *, source: str, command: tuple[str, ...], github: bool, **options: Any
) -> None:
    """Run an agent against a recording: no model is called and nothing outside is touched.

    RUN is a run id or its beginning, `latest`, or a .replay file. CMD is the agent's whole command, by default the
    recorded script and its arguments; a file's is never run unasked. What the agent prints passes through; the
    verdict goes to standard error.

    \b
    spanreplay replay latest
    spanreplay replay 0192f3a4b5c67 -- python agent.py
    spanreplay replay incident.replay --live 'tool:get_*' -- python agent.py
    spanreplay replay latest --set 'llm[3].system += "ask first"' --on-change live \\
        --live 'llm[4..]' --max-cost 0.50 -- python agent.py

    CALLS is KIND[:NAME][@LANE][[NUMBER]]: llm, 'tool:get_*', 'llm[3]' (the third model call of the
    recording), 'llm[3..]', 'tool:pay[-1]', 'llm[*]'. Of several that match, the one that says most decides.
    PATCH is CALLS[NUMBER].FIELD = JSON, += JSON, or `delete CALLS[NUMBER].FIELD`; fields are those of the
    request, or of the answer behind `.response`.

    Exit status: 0 identical, 1 error, 2 wrong usage, 3 diverged, 4 incomplete, 5 tampered, 6 budget exceeded.
    """
    from spanreplay.replay.directions import check_plan
    from spanreplay.report.codeblame import add_code_causes

    files = {name: options[f"{name}_file"] for name in ("json", "junit", "sarif", "html")}
    check_files(files)
    plan = _read_plan(options)
    if plan.is_stepped:
        _check_terminal()
    settings = {"SPANREPLAY_REPLAY_PLAN": plan.to_json()}
    if options["strict_env"]:
        settings["SPANREPLAY_REPLAY_STRICT_ENV"] = "true"
    if not command and runs.is_file(source):
        raise click.UsageError("Missing argument '-- CMD...': a file may come from anywhere, its command is not run.")
    with work_folder() as folder:
        found = open_source(source, folder)
        agent = find_recorded_agent(command, found.recording)
        check_not_isolated(agent)
        completeness = found.recording.completeness()
        check_plan(plan, found.recording)
        if plan.is_strict and not plan.stop_at and not completeness.is_complete:
            verdict = refuse(found.recording)
        else:
            _warn_incomplete(completeness)
            verdict, status = run_agent(agent, found, settings, folder)
            verdict = add_code_causes(settle(verdict, status, completeness), Path.cwd())
    print_verdict(verdict)
    write_files(verdict, files)
    if github:
        write_github(verdict)
    if found.is_at_service and verdict["verdict"] != "error":
        report_verdict(verdict)
    ctx.exit(EXIT_STATUS[verdict["verdict"]])


def _check_terminal() -> None:
    """Refuse to step where nobody can be asked. Raises: ConfigError."""
    from spanreplay.replay.stepper import open_terminal

    os.close(open_terminal())


def _read_plan(options: dict[str, Any]) -> Plan:
    """The plan that the options write. Raises: UsageError, ConfigError."""
    from spanreplay.replay.plan import ON_CHANGE, build_plan

    for item in options["on_change"]:
        action = item.rpartition("=")[2]
        if action not in ON_CHANGE:
            raise click.UsageError(f"--on-change: {action!r} is not one of {', '.join(ON_CHANGE)}")
    return build_plan(
        stub=options["stub"],
        live=options["live"],
        on_change=options["on_change"],
        patches=options["patches"],
        max_cost=options["max_cost"],
        prices=options["prices"],
        is_strict=options["strict"],
        stop_at=options["stop_at"] or 0,
        is_break=options["is_break"],
        dap=options["dap"],
        is_stepped=options["step"],
    )
