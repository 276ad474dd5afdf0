"""`spanreplay replay`: run an agent against a recording, and report what differs."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from spanreplay.cli.agent.child import describe_end, run_child
from spanreplay.cli.agent.launch import (
    Agent,
    build_environ,
    check_not_isolated,
    find_recorded_agent,
    recorded_hash_secret,
    recorded_hash_seed,
)
from spanreplay.cli.agent.settle import settle
from spanreplay.cli.reports import check_files, write_files, write_github
from spanreplay.cli.runs import earlier, runs, shared_work
from spanreplay.cli.runs.needed import find_needed, is_better
from spanreplay.cli.runs.prices import max_cost_option, price_option
from spanreplay.cli.runs.tools_again import judge_with_tools, limit_again, may_lack_state
from spanreplay.cli.terminal import open_console, say
from spanreplay.model import config
from spanreplay.model.call import Recording
from spanreplay.model.errors import ConfigError, SourceError, SpanreplayError
from spanreplay.recording.catalog import Catalog
from spanreplay.recording.derived import describe_origin
from spanreplay.replayer.resolve.directions import check_keys
from spanreplay.replayer.resolve.plan import COMPARABLE
from spanreplay.report.json import dump, parse
from spanreplay.report.shape import EXIT_STATUS, SCHEMA, Verdict
from spanreplay.units.stated import count_before, find_unit

STDERR: Final = 2
_USAGE: Final = 2

if TYPE_CHECKING:
    from spanreplay.replayer.resolve.plan import Plan

REASONS_SAID_MAX: Final = 3
_IDLE: Final = "SPANREPLAY_REPLAY_IDLE"
_IDLE_S: Final = 600
_TIMES: Final = 10
"""A replay may be idle for `_IDLE_S` plus `_TIMES` times the recorded duration: enough to start an application."""


@dataclass(frozen=True)
class Source:
    """A recording, and the name by which a child process finds it: a file or a run id."""

    name: str
    recording: Recording
    is_at_service: bool = False
    earlier: tuple[str, ...] = ()
    """Run ids of the units that are replayed first, in order."""


def _from_catalog(catalog: Catalog, run: str, folder: Path, *, is_at_service: bool, warm: int) -> Source:
    run_id = runs.resolve(catalog, run)
    recording = catalog.load(run_id)
    units = earlier.find_in_catalog(catalog, recording, warm) if warm else ()
    if is_at_service:
        return Source(recording.run_id, recording, is_at_service=True, earlier=units)
    # The child reads one file at its start, so later changes to the directory don't affect the replay.
    path = write_file(catalog, recording, folder)
    return Source(str(path), recording, earlier=earlier.export(catalog, units, folder))


def write_file(catalog: Catalog, recording: Recording, folder: Path) -> Path:
    """Write a run to a file for a replay; for a unit, also the runs of its process. Raises: SourceError."""
    path = folder / f"{recording.run_id}.replay"
    path.write_bytes(catalog.export(recording.run_id))
    unit = find_unit(recording.root.env)
    for run_id in () if unit is None else unit.runs:
        with suppress(SourceError):  # the replay says what is not here
            (folder / f"{run_id}.replay").write_bytes(catalog.export(run_id))
    return path


def open_source(source: str, folder: Path, warm: int = 0) -> Source:
    """Find the recording for a file name, a run id or `latest`, and `warm` earlier units of its process.

    Raises: ConfigError, also if no Python agent can make the recorded calls; SourceError, ServiceError.
    """
    if runs.is_file(source):
        from spanreplay.recording.bundle import load_file

        path = Path(source).absolute()
        recording = load_file(path)
        check_keys(recording)
        return Source(str(path), recording, earlier=earlier.find_beside(path, recording, warm) if warm else ())
    is_at_service = bool(config.read_setting("SPANREPLAY_ENDPOINT"))
    with runs.open_catalog() as catalog:
        found = _from_catalog(catalog, source, folder, is_at_service=is_at_service, warm=warm)
    check_keys(found.recording)
    return found


@contextmanager
def work_folder() -> Iterator[Path]:
    """A private folder for the recording and the verdict; deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="spanreplay-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _read_verdict(path: Path, status: int) -> Verdict:
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        content = ""
    if not content:
        hint = "`spanreplay doctor -- CMD` shows whether its Python can replay"
        if status == -signal.SIGABRT:
            hint = "native code may abort on a denied write; SPANREPLAY_SANDBOX=python allows it"
        raise SpanreplayError(
            f"no verdict: the agent {describe_end(status)} before it finished",
            hint=f"see its output above; {hint}",
        )
    return parse(content)


def report_verdict(verdict: Verdict) -> None:
    """Send the verdict to the service; a failure is only reported."""
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
        say(f"could not send the verdict to the service: {exc}")
        return
    if url:
        say(f"  Phoenix   {url}")


def print_verdict(verdict: Verdict) -> None:
    from spanreplay.report.text import render

    open_console(stderr=True).print(render(verdict), soft_wrap=True)


def _warn_incomplete(recording: Recording) -> None:
    completeness = recording.completeness()
    if describe_origin(recording):
        say(describe_origin(recording))
    if recording.is_imported:
        say("; ".join(completeness.reasons[:REASONS_SAID_MAX]))
    elif not completeness.is_complete:
        reasons = "; ".join(completeness.reasons[:REASONS_SAID_MAX])
        say(f"the recording is incomplete, so it is replayed up to where it ends ({reasons})")


def refuse(recording: Recording) -> Verdict:
    """The verdict of a strict replay that does not start because the recording has holes, with a hint."""
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


def run_agent(
    agent: Agent,
    found: Source,
    settings: dict[str, str],
    folder: Path,
    *,
    stdout: int | None = None,
    stderr: int | None = None,
    timeout_s: float | None = None,
    cwd: Path | None = None,
) -> tuple[Verdict, int]:
    """Replay in a child process; return the verdict and the exit status. Raises: SpanreplayError.

    For `stdout`, `stderr`, `timeout_s` and `cwd` see `run_child`.
    """
    report_path = folder / "verdict.json"
    told = {
        "SPANREPLAY_MODE": "replay",
        "SPANREPLAY_REPLAY_SOURCE": found.name,
        "SPANREPLAY_REPLAY_REPORT": str(report_path),
        "SPANREPLAY_REPLAY_PID": "",
        **settings,
    }
    seed = recorded_hash_seed(found.recording)
    environ = build_environ(os.environ, told, is_replay=True, hash_seed=seed, here=cwd)
    secret = recorded_hash_secret(found.recording)
    status = run_child(
        agent.argv,
        environ,
        stdout=stdout,
        stderr=stderr,
        timeout_s=timeout_s,
        cwd=cwd,
        hash_secret=secret,
        is_replay=True,
    )
    return _read_verdict(report_path, status), status


@click.command("replay")
@click.argument("source", metavar="RUN", shell_complete=runs.complete_run)
@click.argument("command", metavar="[-- CMD...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--stub", multiple=True, metavar="CALLS", help="Serve these from the recording, e.g. 'llm:*'.")
@click.option("--live", multiple=True, metavar="CALLS", help="Let these run live, e.g. 'tool:get_*' or 'llm[3..]'.")
@click.option("--rerun", multiple=True, metavar="CALLS", help="Run these tools' code again; its calls are served.")
@click.option(
    "--on-change",
    multiple=True,
    metavar="[CALLS=]stop|serve|live",
    help="If a call differs: stop there (default), serve the recorded answer, or go live.",
)
@click.option(
    "--set", "patches", multiple=True, metavar="PATCH", help="Change a field, e.g. 'llm[3].system += \"ask first\"'."
)
@max_cost_option
@price_option
@click.option("--strict", is_flag=True, help="Refuse an incomplete recording; stop at a call that has moved.")
@click.option("--allow-tokens", is_flag=True, help="Let live calls send tokens that stand for hidden values.")
@click.option(
    "--compare",
    "compares",
    multiple=True,
    type=click.Choice(COMPARABLE),
    help="Also compare the agent's own output to standard error.",
)
@click.option("--strict-env", is_flag=True, help="Deny reads of clock, files and variables that are not recorded.")
@click.option("--no-recorded-env", is_flag=True, help="Don't give the agent what the recording has of its environment.")
@click.option(
    "--warm",
    type=earlier.count_option,
    metavar="N|all|auto",
    default=None,
    help="First replay the last N earlier units of its process, or all, for the state that they leave behind; auto "
    "finds the units that are needed by replaying several times. By default auto, if unchanged code diverges alone.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End a replay that takes longer; it has diverged, and the report says what it waited for.",
)
@click.option(
    "--serve",
    "port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    default=None,
    help="Listen on a local port: each HTTP request runs one replay and gets the application's answer or the job's "
    "result.",
)
@click.option("--to", "stop_at", type=click.IntRange(1), metavar="N", default=None, help="End before recorded call N.")
@click.option(
    "--break", "is_break", is_flag=True, help="With --to N: call breakpoint() there instead (PYTHONBREAKPOINT)."
)
@click.option("--dap", metavar="HOST:PORT", default="", help="Break in an editor that attaches here (needs debugpy).")
@click.option("--step", is_flag=True, help="Show each call at the terminal and wait: next, continue, print, quit.")
@click.option("--json", "json_file", metavar="FILE", help="Write the verdict as JSON too; - is standard output.")
@click.option("--junit", "junit_file", metavar="FILE", help="Write it as JUnit XML.")
@click.option("--sarif", "sarif_file", metavar="FILE", help="Write it as SARIF 2.1.0.")
@click.option("--html", "html_file", metavar="FILE", help="Write it as one HTML page.")
@click.option(
    "--fail-on-unexercised", is_flag=True, help="Exit 3 if a function that changed was served instead of run."
)
@click.option("--github", is_flag=True, help="Annotate the code and write the step summary in GitHub Actions.")
@click.pass_context
def replay_command(ctx: click.Context, /, *, source: str, command: tuple[str, ...], **options: Any) -> None:
    """Run an agent against a recording: no model is called and nothing outside is touched.

    RUN is a run id or its beginning, `latest`, or a .replay file. CMD is the agent's whole command, by default the
    recorded script and its arguments; the command stored in a file is never run by itself.
    The agent's output passes through; the verdict goes to standard error.

    \b
    spanreplay replay latest
    spanreplay replay 0192f3a4b5c67 -- python agent.py
    spanreplay replay incident.replay --live 'tool:get_*' -- python agent.py
    spanreplay replay latest --set 'llm[3].system += "ask first"' --on-change live \\
        --live 'llm[4..]' --max-cost 0.50 -- python agent.py

    CALLS is KIND[:NAME][@LANE][[NUMBER]]: llm, 'tool:get_*', 'llm[3]' (the third model call of the
    recording), 'llm[3..]', 'tool:pay[-1]', 'llm[*]'. If several selectors match, the most specific wins.
    PATCH is CALLS[NUMBER].FIELD = JSON, += JSON, or `delete CALLS[NUMBER].FIELD`; fields are those of the
    request, or of the answer after `.response`.

    Exit status: 0 identical, 1 error, 2 wrong usage, 3 diverged, 4 incomplete, 5 tampered, 6 budget exceeded.
    """
    files = {name: options[f"{name}_file"] for name in ("json", "junit", "sarif", "html")}
    check_files(files)
    plan = _read_plan(options)
    if plan.is_stepped:
        _check_terminal()
    settings = _build_settings(plan, options)
    if options["port"] is not None and options["warm"] == earlier.AUTO:
        raise click.UsageError("--warm auto can't be combined with --serve: give a number or all.")
    if not command and runs.is_file(source):
        raise click.UsageError("Missing argument '-- CMD...': the command stored in a file is never run by itself.")
    with work_folder() as folder:
        found = open_source(source, folder, options["warm"] or 0)
        agent = find_recorded_agent(command, found.recording)
        check_not_isolated(agent)
        completeness = found.recording.completeness()
        _check_plan(plan, found.recording)
        show = partial(_show, found, files, options)
        complete = partial(_complete, source, found, agent, options)
        if plan.is_strict and not plan.stop_at and not completeness.is_complete:
            ctx.exit(show(refuse(found.recording)))
        settings |= limit_idle(found.recording, plan, options)
        serve = None if options["port"] is None else _open_port(options["port"], found.recording)
        _warn_incomplete(found.recording)
        is_searching = options["warm"] == earlier.AUTO
        aside = STDERR if is_searching or "-" in files.values() else None  # standard output holds the report alone
        judge = partial(_judge, agent, found, folder, aside)
        if serve is not None:

            def serve_one(told: Mapping[str, str]) -> Verdict:
                return complete(judge({**settings, **told}, found.earlier))

            ctx.exit(serve(serve_one, show))
        search = partial(judge, settings)
        verdict = find_needed(found.earlier, search) if is_searching else search(found.earlier)
        if options["warm"] is None:
            again = partial(_judge, agent, found, folder, STDERR)
            limited = settings | limit_again(verdict, settings)
            verdict = judge_with_tools(verdict, found.recording, plan, lambda p: again(limited | _told(p), ()))
            if may_lack_state(verdict, plan) and count_before(found.recording) > 0:
                verdict = _judge_after_earlier(source, folder, verdict, partial(again, settings))
        verdict = complete(verdict)
    ctx.exit(show(verdict))


def _judge_after_earlier(
    source: str, folder: Path, alone: Verdict, judge: Callable[[Sequence[str]], Verdict]
) -> Verdict:
    """The verdict after the earlier units that a unit needs; `alone`, if these are not here or change nothing."""
    try:
        units = open_source(source, folder, earlier.AUTO).earlier
    except (SpanreplayError, OSError):
        return alone
    say("its code is unchanged, and it diverged: does it need what earlier units left in memory? (--warm 0: don't ask)")
    try:
        after = find_needed(units, judge, alone)
    except SpanreplayError as exc:
        say(f"that can't be told: {exc}")
        return alone
    except click.exceptions.Exit:  # interrupted
        print_verdict(alone)
        raise
    return after if is_better(after, alone) else alone


def _open_port(port: int, recording: Recording) -> Callable[..., int]:
    """`serve` for a recorded request or job. Imported only here, because it loads the modules of a recorded process."""
    from spanreplay.cli import served

    return partial(served.serve, port, served.find_recorded(recording))


def _told(plan: Plan) -> dict[str, str]:
    return {"SPANREPLAY_REPLAY_PLAN": plan.to_json()}


def _build_settings(plan: Plan, options: dict[str, Any]) -> dict[str, str]:
    settings = _told(plan)
    if options["strict_env"]:
        settings["SPANREPLAY_REPLAY_STRICT_ENV"] = "true"
    if options["timeout_s"]:
        settings["SPANREPLAY_REPLAY_TIMEOUT"] = str(options["timeout_s"])
    return settings


def limit_idle(recording: Recording, plan: Plan, options: dict[str, Any]) -> dict[str, str]:
    """The setting that ends a replay that makes no more calls; empty if a user is there to end it.

    Replays with live calls and debugging sessions have no limit.
    """
    is_attended = plan.is_stepped or plan.is_break or bool(plan.dap) or options["port"] is not None
    is_live = bool(options["live"]) or any(each.endswith("live") for each in options["on_change"])
    is_at_terminal = sys.stdin is not None and sys.stdin.isatty()
    if is_attended or is_live or is_at_terminal or config.read_setting(_IDLE):
        return {}
    took_s = max(0, recording.root.end_ns - recording.root.start_ns) / 1e9
    return {_IDLE: f"{_IDLE_S + _TIMES * took_s:.0f}"}


def _complete(source: str, found: Source, agent: Agent, options: dict[str, Any], verdict: Verdict) -> Verdict:
    """Add facts that only this process knows: the changed code, and the command to try next."""
    if verdict["verdict"] == "diverged":
        from spanreplay.report.codeblame import add_code_causes

        verdict = add_code_causes(verdict, Path.cwd())
        if find_unit(found.recording.root.env) is not None:
            verdict = _explain(source, verdict)
    return verdict if options["warm"] else earlier.name_command(verdict, source, found.recording, agent.argv)


def _explain(source: str, verdict: Verdict) -> Verdict:
    """The verdict of a unit; incomplete if it shared work with concurrent units whose runs are here."""
    with suppress(SpanreplayError):
        if runs.is_file(source):
            return shared_work.explain_file(verdict, Path(source).absolute())
        with runs.open_catalog() as catalog:
            return shared_work.explain_in_catalog(verdict, catalog)
    return verdict


def _show(found: Source, files: dict[str, str | None], options: dict[str, Any], verdict: Verdict) -> int:
    """Print and write a verdict, and send it to the service; return the exit status."""
    print_verdict(verdict)
    write_files(verdict, files)
    if options["github"]:
        write_github(verdict)
    if found.is_at_service and verdict["verdict"] != "error":
        report_verdict(verdict)
    is_failed = (
        options["fail_on_unexercised"] and verdict["verdict"] == "identical" and bool(verdict.get("unexercised"))
    )
    return EXIT_STATUS["diverged" if is_failed else verdict["verdict"]]


def _judge(
    agent: Agent, found: Source, folder: Path, stdout: int | None, settings: dict[str, str], units: Sequence[str]
) -> Verdict:
    """Replay these earlier units, then the run itself. Raises: SpanreplayError."""
    told = {**settings, "SPANREPLAY_REPLAY_WARM": ",".join(units)}
    verdict, status = run_agent(agent, found, told, Path(tempfile.mkdtemp(dir=folder)), stdout=stdout)
    return settle(verdict, status, found.recording.completeness())


def _check_terminal() -> None:
    """Refuse to step without a terminal. Raises: ConfigError."""
    from spanreplay.replayer.resolve.stepper import open_terminal

    os.close(open_terminal())


def _check_plan(plan: Plan, recording: Recording) -> None:
    """Refuse a plan that does not fit the recording. Raises: Exit, with the status of wrong usage."""
    from spanreplay.cli.app import print_error
    from spanreplay.replayer.resolve.directions import check_plan

    try:
        check_plan(plan, recording)
    except ConfigError as exc:
        print_error(exc)
        raise click.exceptions.Exit(_USAGE) from exc


def _read_plan(options: dict[str, Any]) -> Plan:
    """Build the plan from the options. Raises: UsageError, ConfigError."""
    from spanreplay.replayer.resolve.plan import ON_CHANGE, build_plan

    for item in options["on_change"]:
        action = item.rpartition("=")[2]
        if action not in ON_CHANGE:
            raise click.UsageError(f"--on-change: {action!r} is not one of {', '.join(ON_CHANGE)}")
    return build_plan(
        stub=options["stub"],
        live=options["live"],
        rerun=options["rerun"],
        on_change=options["on_change"],
        patches=options["patches"],
        max_cost=options["max_cost"],
        prices=options["prices"],
        is_strict=options["strict"],
        allows_tokens=options["allow_tokens"],
        compares=options["compares"],
        takes_environment=not options["no_recorded_env"],
        stop_at=options["stop_at"] or 0,
        is_break=options["is_break"],
        dap=options["dap"],
        is_stepped=options["step"],
    )
