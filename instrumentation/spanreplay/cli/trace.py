"""`spanreplay trace`: replay the runs of one request that went through several services."""

from __future__ import annotations

import json
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from spanreplay.cli.agent.launch import Agent, check_not_isolated, find_agent
from spanreplay.cli.agent.settle import settle
from spanreplay.cli.export import ELSEWHERE
from spanreplay.cli.ls import read_trace, search
from spanreplay.cli.replay import STDERR, Source, report_verdict, run_agent, work_folder, write_file
from spanreplay.cli.reports import check_files
from spanreplay.cli.runs import runs
from spanreplay.cli.runs.shared_work import explain_in_catalog
from spanreplay.cli.runs.trace_links import Link, answer_of, find_links, sort_called_first
from spanreplay.cli.terminal import echo, say
from spanreplay.model import config
from spanreplay.model.call import Recording
from spanreplay.model.errors import RunNotFound, SpanreplayError
from spanreplay.recording.catalog import RUNS_MAX, Catalog, RunQuery
from spanreplay.recording.whole_file import write_atomically
from spanreplay.replayer.resolve.plan import build_plan
from spanreplay.report import suite
from spanreplay.report import trace as report
from spanreplay.report.codeblame import add_code_causes
from spanreplay.report.shape import EXIT_STATUS
from spanreplay.report.trace import Caller, Given, Result
from spanreplay.units.given import Answer

_TEXT_MAX: Final = 20_000
"""Characters of an answer that is given to another run: a plan is a variable of its process, and has 128 KiB."""


@dataclass(frozen=True)
class Service:
    """How an application is started here."""

    agent: Agent
    folder: Path


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

    TRACE_ID is that of the W3C trace, or a whole `traceparent`; `spanreplay ls --trace` lists its runs. A run that
    another one called is replayed before that one: where it answers something else now, the other one is given the
    new answer. Its other calls, and a request that differs, are compared as ever.

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
        replays = _Replays(catalog, services, links, folder, timeout_s, aside)
        for run in sort_called_first(found, links):
            replays.replay(run)
    results, duration_ms = replays.results, int((time.monotonic() - began) * 1000)
    verdicts = [each.verdict for each in results]
    say(report.describe_all(results, duration_ms))
    _write_json(json_file, trace_id, results, duration_ms)
    if config.read_setting("SPANREPLAY_ENDPOINT"):
        for verdict in verdicts:
            if verdict["verdict"] != "error":
                report_verdict(verdict)
    ctx.exit(EXIT_STATUS[suite.decide(verdicts)])


def read_services(found: Sequence[Recording], commands: Sequence[str], folders: Sequence[str]) -> Mapping[str, Service]:
    """How each application of these runs is started. Raises: UsageError where that is not said."""
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


class _Replays:
    """Replays runs one after another; an answer that has changed is given to the run that had asked for it."""

    def __init__(
        self,
        catalog: Catalog,
        services: Mapping[str, Service],
        links: Mapping[str, Link],
        folder: Path,
        timeout_s: float,
        stdout: int | None,
    ) -> None:
        self.results: list[Result] = []
        self._catalog = catalog
        self._services = services
        self._links = links
        self._folder = folder
        self._timeout_s = timeout_s
        self._stdout = stdout
        self._changed: dict[str, list[Given]] = {}
        """Run id → the answers that are given to that run, in place of the recorded ones."""

    def replay(self, run: Recording) -> None:
        """Replay the next run, and say what came of it."""
        service, given = self._services[run.root.app], self._changed.get(run.run_id, [])
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        answer = folder / "answer.json"
        patches = tuple(f"http[{each.place}].response = {json.dumps(each.text)}" for each in given)
        told = {
            "SPANREPLAY_REPLAY_PLAN": build_plan(patches=patches).to_json(),
            "SPANREPLAY_REPLAY_TIMEOUT": str(self._timeout_s),
            "SPANREPLAY_REPLAY_ANSWER": str(answer),
            "SPANREPLAY_REPLAY_WARM": "",
        }
        try:
            source = Source(str(write_file(self._catalog, run, self._folder)), run)
            verdict, status = run_agent(service.agent, source, told, folder, stdout=self._stdout, cwd=service.folder)
            verdict = settle(verdict, status, run.completeness())
            verdict = explain_in_catalog(add_code_causes(verdict, service.folder), self._catalog)
        except SpanreplayError as exc:
            verdict = suite.make_error(run.run_id, run.root.app, str(exc), exc.hint)
        link = self._links.get(run.run_id)
        caller = None if link is None else Caller(link.caller.run_id, link.caller.root.app, link.call.number)
        result = Result(verdict, caller, tuple(given))
        self.results.append(result)
        say(report.describe(result))
        if link is not None and verdict["verdict"] == "diverged":
            self._note_answer(run, link, Answer.read(answer))

    def _note_answer(self, run: Recording, link: Link, answer: Answer | None) -> None:
        """Keep another answer than the recorded one for the run that asked for it."""
        recorded = answer_of(run)
        where = f"call {link.call.number} of {link.caller.root.app}"
        if answer is None or recorded is None:
            say(f"  {where} has its recorded answer: there is none of now")
            return
        try:
            status, text = answer.status, answer.body.decode()
        except UnicodeDecodeError:
            say(f"  {where} has its recorded answer: that of now is no text")
            return
        if status != recorded[0]:
            say(f"  {where} has its recorded answer, status {recorded[0]}: the status is {status} now")
        elif len(text) > _TEXT_MAX:
            say(f"  {where} has its recorded answer: that of now is longer than {_TEXT_MAX:,} characters")
        elif text != recorded[1]:
            self._changed.setdefault(link.caller.run_id, []).append(
                Given(link.place, link.call.number, run.run_id, text)
            )


def _write_json(file: str | None, trace_id: str, results: Sequence[Result], duration_ms: int) -> None:
    """The report to its file, - is standard output. Raises: ConfigError."""
    if not file:
        return
    text = report.render_json(trace_id, results, duration_ms)
    if file == "-":
        echo(text, nl=False)
    else:
        write_atomically(Path(file), text.encode(), hint=ELSEWHERE)
