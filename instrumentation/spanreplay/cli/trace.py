"""`spanreplay trace`: replay the runs of one request that went through several services."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from spanreplay.cli.agent.launch import check_not_isolated, find_agent
from spanreplay.cli.export import ELSEWHERE
from spanreplay.cli.ls import read_trace
from spanreplay.cli.replay import STDERR, report_verdict, work_folder
from spanreplay.cli.reports import check_files
from spanreplay.cli.runs import runs
from spanreplay.cli.runs.search import search
from spanreplay.cli.runs.together import Replays, Service
from spanreplay.cli.runs.trace_links import find_links, sort_called_first
from spanreplay.cli.terminal import echo, say
from spanreplay.model import config
from spanreplay.model.call import Recording
from spanreplay.model.errors import RunNotFound
from spanreplay.recording.catalog import RUNS_MAX, RunQuery
from spanreplay.recording.whole_file import write_atomically
from spanreplay.report import suite
from spanreplay.report import trace as report
from spanreplay.report.shape import EXIT_STATUS
from spanreplay.report.trace import Result


@click.command("trace")
@click.argument("trace_id", metavar="TRACE_ID", callback=read_trace)
@click.option(
    "--service",
    "commands",
    multiple=True,
    metavar="APP=CMD",
    help="The command that starts this application; APP as `ls` names it.",
)
@click.option(
    "--in", "folders", multiple=True, metavar="APP=FOLDER", help="The folder to start it in; default: this one."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="End a replay that takes longer.",
)
@click.option("--json", "json_file", metavar="FILE", help="Write all verdicts as JSON; - is standard output.")
@click.pass_context
def trace_command(
    ctx: click.Context,
    /,
    *,
    trace_id: str,
    commands: tuple[str, ...],
    folders: tuple[str, ...],
    timeout_s: float,
    json_file: str | None,
) -> None:
    """Replay one request through all services that it went through, each against its own recording.

    TRACE_ID is the id of the W3C trace, or a whole `traceparent`; `spanreplay ls --trace` lists its runs. A called run
    is replayed before its caller: if its answer has changed, the caller gets the new answer. If the caller's request
    has changed, the called run is replayed again with that request. All other calls are compared as usual.

    \b
    spanreplay trace 4bf92f3577b34da6a3ce929d0e0e4736 \\
        --service 'shop=python -m uvicorn shop:app' --in shop=../shop \\
        --service 'stock=python -m flask run' --in stock=../stock

    Exit status: 0 all identical, else that of the worst run: 1 error, 5 tampered, 3 diverged, 4 incomplete; 2 is wrong
    usage.
    """
    check_files({"json": json_file})
    began = time.monotonic()
    aside = STDERR if json_file == "-" else None
    with runs.open_catalog() as catalog, work_folder() as folder:
        query = RunQuery(trace_id=trace_id, limit=RUNS_MAX)
        found = [catalog.load(each.root.run_id) for each in search(catalog, query)]
        if not found:
            raise RunNotFound(f"no runs of trace {trace_id} here", hint="spanreplay ls shows the runs that are here")
        links = find_links(found)
        services = read_services(found, commands, folders)
        replays = Replays(catalog, services, links, folder, timeout_s, aside)
        results = replays.replay_all(sort_called_first(found, links))
    duration_ms = int((time.monotonic() - began) * 1000)
    verdicts = [each.verdict for each in results]
    say(report.describe_all(results, duration_ms))
    _write_json(json_file, trace_id, results, duration_ms)
    if config.read_setting("SPANREPLAY_ENDPOINT"):
        for verdict in verdicts:
            if verdict["verdict"] != "error":
                report_verdict(verdict)
    ctx.exit(EXIT_STATUS[suite.decide(verdicts)])


def read_services(found: Sequence[Recording], commands: Sequence[str], folders: Sequence[str]) -> Mapping[str, Service]:
    """Read how each application of these runs is started. Raises: UsageError if a command is missing."""
    told, places = _read_pairs("--service", commands), _read_pairs("--in", folders)
    apps = list(dict.fromkeys(run.root.app for run in found))
    unknown = [app for app in (*told, *places) if app not in apps]
    if unknown:
        raise click.UsageError(f"the trace has no run of {unknown[0]!r}; its applications are {', '.join(apps)}")
    missing = [app for app in apps if app not in told]
    if missing:
        words = " ".join(f"--service {shlex.quote(f'{app}=CMD')}" for app in missing)
        raise click.UsageError(f"say how {'it is' if len(missing) == 1 else 'they are'} started: {words}")
    return {app: _find_service(app, told[app], places.get(app, ".")) for app in apps}


def _read_pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        app, equals, value = text.partition("=")
        if not (app and equals and value.strip()):
            raise click.UsageError(f"{option} {text!r} is not APP={'CMD' if option == '--service' else 'FOLDER'}")
        found[app] = value
    return found


def _find_service(app: str, command: str, place: str) -> Service:
    folder = Path(place).resolve()
    if not folder.is_dir():
        raise click.UsageError(f"--in {app}={place}: no such folder")
    try:
        words = shlex.split(command)
    except ValueError as exc:
        raise click.UsageError(f"--service {app}={command}: {exc}") from exc
    if "/" in words[0]:
        words[0] = str(folder / words[0])
    agent = find_agent(words)
    check_not_isolated(agent)
    return Service(agent, folder)


def _write_json(file: str | None, trace_id: str, results: Sequence[Result], duration_ms: int) -> None:
    """Write the report to its file; - is standard output. Raises: ConfigError."""
    if not file:
        return
    text = report.render_json(trace_id, results, duration_ms)
    if file == "-":
        echo(text, nl=False)
    else:
        write_atomically(Path(file), text.encode(), hint=ELSEWHERE)
