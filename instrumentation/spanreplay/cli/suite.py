"""`spanreplay suite`: replay many units of an application that is started once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import click

from spanreplay.cli.agent.launch import as_kernel, check_not_isolated, find_agent
from spanreplay.cli.export import ELSEWHERE
from spanreplay.cli.one_start import Terms, replay_units
from spanreplay.cli.replay import STDERR, report_verdict, work_folder
from spanreplay.cli.reports import check_files
from spanreplay.cli.runs import earlier, runs
from spanreplay.cli.runs.lacking import judge_lacking
from spanreplay.cli.runs.shared_work import explain_file, explain_in_catalog
from spanreplay.cli.runs.times import time_option
from spanreplay.cli.runs.tools_again import judge_all_with_tools
from spanreplay.cli.runs.units import Selection, Unit, check_one_application, group_by_process, select
from spanreplay.cli.terminal import counting, echo, say
from spanreplay.model import config
from spanreplay.model.errors import ConfigError, SourceError, SpanreplayError
from spanreplay.recording.bundle import load_file
from spanreplay.recording.catalog import Catalog, RunQuery
from spanreplay.recording.whole_file import write_atomically
from spanreplay.replayer.resolve.plan import Plan
from spanreplay.report import suite as report
from spanreplay.report.shape import EXIT_STATUS, Verdict
from spanreplay.units.stated import find_unit

UNITS_MAX: Final = 10_000
UNITS: Final = 1_000
TIMEOUT_S: Final = 60.0
_EXPLAINED_MAX: Final = 50
"""How many diverged units are checked for work shared with concurrent units; each check reads up to 100 runs."""
_CORES: Final = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@click.command("suite")
@click.argument("command", metavar="-- CMD...", nargs=-1, type=click.UNPROCESSED, required=True)
@click.option("--run", "named", multiple=True, metavar="RUN", help="A unit: a run id or a .replay file.")
@click.option(
    "--process", default="", metavar="RUN", help="Units of this process, given by its run or one of its units."
)
@click.option("--user", "user_id", default="", help="Units of this user.")
@click.option("--session", "session_id", default="", help="Units of this session.")
@click.option("--app", default="", help="Units of this application.")
@click.option("--tool", default="", help="Units that called this tool.")
@click.option("--status", type=click.Choice(["ok", "error", "incomplete"]), help="How the unit ended.")
@click.option(
    "--since", type=time_option, metavar="TIME", help="Started at or after this time; 2h means two hours ago."
)
@click.option("--until", type=time_option, metavar="TIME", help="Started at or before this time.")
@click.option(
    "--limit", type=click.IntRange(1, UNITS_MAX), default=UNITS, show_default=True, help="Only this many, newest first."
)
@click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Units in parallel, at most one per core."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, min_open=True),
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="End a unit that takes longer.",
)
@click.option(
    "--warm",
    type=earlier.count_option,
    metavar="N|all|auto",
    default="auto",
    show_default=True,
    help="First replay the last N earlier units of each unit's process, or all, for the state that they leave behind; "
    "auto replays each unit alone, and those that diverge again after the units that they need.",
)
@click.option("--json", "json_file", metavar="FILE", help="Write all verdicts as JSON; - is standard output.")
@click.option("--junit", "junit_file", metavar="FILE", help="Write them as JUnit XML.")
@click.pass_context
def suite_command(ctx: click.Context, /, *, command: tuple[str, ...], **options: Any) -> None:
    """Replay many units (requests, jobs) of an application that is started once.

    CMD starts the application, as for `spanreplay replay`. Its start is replayed from the process's recording; then
    each unit is replayed in a fork of the started application, with its own verdict, files and sandbox. If the
    application can't be forked, each unit gets its own process, and the reason is printed.

    \b
    spanreplay suite --since 1h -- python -m uvicorn app:app
    spanreplay suite --app app:app --user ann --jobs 4 --junit units.xml -- gunicorn app:app
    spanreplay suite --run 0192f3a4b5c67 --run 0192f3a4b5d01 -- python -m uvicorn app:app

    Units of several processes need one start for each process. A unit that diverges is replayed again after earlier
    units of its process, whose state it may need; --warm 0 judges each unit alone.

    Exit status: 0 all identical, else that of the worst unit: 1 error, 5 tampered, 3 diverged, 4 incomplete; 2 is wrong
    usage.
    """
    files = {name: options[f"{name}_file"] for name in ("json", "junit")}
    check_files(files)
    agent = find_agent(command)
    check_not_isolated(agent)
    aside = STDERR if "-" in files.values() else None
    terms = Terms(agent, min(options["jobs"], _CORES), options["timeout_s"], aside)
    began = time.monotonic()
    verdicts: list[Verdict] = []
    starts = 0
    with runs.open_catalog() as catalog:
        units = _select(catalog, options)
        for group in group_by_process(units):
            own = replace(terms, agent=as_kernel(agent, group[0].root.env))
            with work_folder() as folder:
                found, count = _replay_process(catalog, group[0].process, group, own, options["warm"], folder)
                found = _explain(catalog, found, group)
            starts += count
            for verdict in found:
                say(report.describe(verdict))
            verdicts += found
    duration_ms = int((time.monotonic() - began) * 1000)
    say(report.describe_all(verdicts, starts, duration_ms))
    for line in report.describe_groups(verdicts):
        say(line)
    _write(files, verdicts, starts, duration_ms)
    if config.read_setting("SPANREPLAY_ENDPOINT"):
        for verdict in verdicts:
            if verdict["verdict"] != "error":
                report_verdict(verdict)
    ctx.exit(EXIT_STATUS[report.decide(verdicts)])


def _select(catalog: Catalog, options: dict[str, Any]) -> list[Unit]:
    """Select the units by the options. Raises: UsageError, SpanreplayError."""
    query = RunQuery(
        user_id=options["user_id"],
        session_id=options["session_id"],
        app=options["app"],
        tool=options["tool"],
        status=options["status"] or "",
        since_ns=options["since"] or 0,
        until_ns=options["until"] or 0,
        limit=options["limit"],
    )
    chosen = [options["process"], replace(query, limit=0) != RunQuery(limit=0)]
    if not options["named"] and not any(chosen):
        raise click.UsageError("Say which units: --run RUN, --process RUN, or --app, --since and other options of ls.")
    if options["named"] and any(chosen):
        raise click.UsageError("--run can't be combined with options that search for units.")
    units = select(catalog, Selection(options["named"], options["process"], query))
    try:
        check_one_application(units)
    except ConfigError as exc:
        raise click.UsageError(f"{exc}; {exc.hint}") from exc
    return units


def _write_files(catalog: Catalog, process: str, units: Sequence[Unit], folder: Path) -> list[tuple[Unit, str]]:
    """Write each unit to a file for its replay, and beside it the run of their process."""
    here = [unit for unit in units if not unit.file]
    for unit, content in zip(here, _iter_exports(catalog, [unit.run_id for unit in here]), strict=True):
        (folder / f"{unit.run_id}.replay").write_bytes(content)
    origins = {start.origin for unit in here if (start := find_unit(unit.root.env)) is not None and start.origin}
    for run_id in (process, *sorted(origins)):
        with suppress(SourceError):  # the replay says what is not here
            (folder / f"{run_id}.replay").write_bytes(catalog.export(run_id))
    return [(unit, unit.file or str(folder / f"{unit.run_id}.replay")) for unit in units]


def _explain(catalog: Catalog, verdicts: Sequence[Verdict], units: Sequence[Unit]) -> list[Verdict]:
    """The verdicts; incomplete for a unit that shared work with concurrent ones."""
    found = list(verdicts)
    diverged = [at for at, verdict in enumerate(verdicts) if verdict["verdict"] == "diverged"]
    for at in diverged[:_EXPLAINED_MAX]:
        file = units[at].file
        found[at] = explain_file(found[at], Path(file)) if file else explain_in_catalog(found[at], catalog)
    return found


def _replay_process(
    catalog: Catalog, process: str, units: Sequence[Unit], terms: Terms, warm: int, folder: Path
) -> tuple[list[Verdict], int]:
    """Replay the units of one process; return the verdicts, and how many times the application was started."""
    with counting("replaying", len(units)) as told:
        sources = _write_files(catalog, process, units, folder)
        is_auto = warm == earlier.AUTO
        before = earlier.find_for_each(units, catalog, config.WARM_UP_UNITS_MAX if is_auto else warm) if warm else {}
        first = {} if is_auto else {run: tuple(each.run_id for each in roots) for run, roots in before.items()}
        _write_earlier(catalog, units, first, folder)
        verdicts, starts = replay_units(sources, replace(terms, earlier=first), folder, told)
    if not is_auto:
        return verdicts, starts

    def again(tried: Sequence[tuple[Unit, str]], terms: Terms, what: str) -> list[Verdict]:
        nonlocal starts
        with counting(f"replaying {what}", len(tried)) as told:
            found, count = replay_units(tried, terms, Path(mkdtemp(dir=folder)), told)
        starts += count
        return found

    def with_tools(plan: Plan, chosen: Sequence[int]) -> list[Verdict]:
        own = replace(terms, plan=plan.to_json())
        return again([sources[at] for at in chosen], own, "with the code of tools")

    def judge(tries: Mapping[str, Sequence[str]]) -> dict[str, Verdict]:
        _write_earlier(catalog, units, tries, folder)
        tried = [each for each in sources if each[0].run_id in tries]
        found = again(tried, replace(terms, earlier=tries), "after earlier units")
        return dict(zip((unit.run_id for unit, _ in tried), found, strict=True))

    try:
        verdicts = judge_all_with_tools(verdicts, lambda at: load_file(Path(sources[at][1])), with_tools)
        return judge_lacking(units, verdicts, before, judge), starts
    except SpanreplayError as exc:  # an earlier unit that can't be read costs no verdict
        say(f"that can't be told: {exc}")
        return verdicts, starts
    except click.exceptions.Exit:  # interrupted: what is known already isn't lost
        for verdict in verdicts:
            say(report.describe(verdict))
        raise


def _write_earlier(catalog: Catalog, units: Sequence[Unit], before: Mapping[str, Sequence[str]], folder: Path) -> None:
    """Write the earlier units of units in the catalog beside them; those of a unit in a file are beside it already."""
    ours = {each for unit in units if not unit.file for each in before.get(unit.run_id, ())}
    wanted = [each for each in sorted(ours) if not (folder / f"{each}.replay").exists()]
    for run_id, content in zip(wanted, _iter_exports(catalog, wanted), strict=True):
        (folder / f"{run_id}.replay").write_bytes(content)


def _iter_exports(catalog: Catalog, run_ids: Sequence[str]) -> Iterator[bytes]:
    """Each run as the content of a file; a directory is scanned only once for all of them."""
    from spanreplay.recording.spool import SpoolCatalog

    if isinstance(catalog, SpoolCatalog):
        yield from catalog.iter_exports(run_ids)
    else:
        yield from map(catalog.export, run_ids)


def _write(files: dict[str, str | None], verdicts: Sequence[Verdict], starts: int, duration_ms: int) -> None:
    """Write each report to its file; - is standard output. Raises: ConfigError."""
    renders: dict[str, Callable[[], str]] = {
        "json": lambda: report.render_json(verdicts, starts, duration_ms),
        "junit": lambda: report.render_junit(verdicts),
    }
    for name, file in files.items():
        if file == "-":
            echo(renders[name](), nl=False)
        elif file:
            write_atomically(Path(file), renders[name]().encode(), hint=ELSEWHERE)
