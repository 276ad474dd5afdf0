"""`spanreplay promote`: turn a run in which something went wrong into a test that fails until it is fixed.

With --same, a run that was right becomes a test that fails when the run changes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from spanreplay.cli.agent.launch import Agent, check_not_isolated, find_recorded_agent
from spanreplay.cli.compare.at_commits import SHORT, Replays, describe_shortly, timeout_option
from spanreplay.cli.compare.commits import Repository
from spanreplay.cli.replay import Source, open_source, work_folder, write_file
from spanreplay.cli.runs import runs
from spanreplay.cli.terminal import print_data, print_json, say
from spanreplay.model.call import CallRecord, Recording
from spanreplay.model.errors import ConfigError
from spanreplay.report.shape import Verdict
from spanreplay.testing.promoted import IDENTICAL, Instead, find_instead, is_made
from spanreplay.units.stated import find_unit

__all__ = ["promote_command"]

_FOLDER: Final = Path("tests", "incidents")
_HERE: Final = "the working tree"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,60}\Z")
_TEST: Final = '''"""Written by `spanreplay promote` from run {run_id}: its call {number} must not be made again."""

import sys
from pathlib import Path

from spanreplay.testing.promoted import check_promoted

HERE = Path(__file__).parent


def test_{name}():
    check_promoted(
        HERE / {file!r},
        never={number},
        instead={instead!r},
        command=({command}),
        cwd=HERE / {cwd!r},
    )
'''
_SAME_TEST: Final = '''"""Written by `spanreplay promote --same` from run {run_id}: it was right, and must stay so."""

import sys
from pathlib import Path

from spanreplay.testing.promoted import check_same

HERE = Path(__file__).parent


def test_{name}():
    check_same(HERE / {file!r}, command=({command}), cwd=HERE / {cwd!r})
'''


@click.command("promote")
@click.argument("source", metavar="RUN", shell_complete=runs.complete_run)
@click.argument("command", metavar="[-- CMD...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--never", "number", type=click.IntRange(1), help="The call that must not be made again.")
@click.option("--same", "is_same", is_flag=True, help="The run was right: nothing in it may change.")
@click.option(
    "--bad",
    default="",
    metavar="COMMIT",
    help="A commit that makes the call, or with --same the one before a change; default: that of the recording.",
)
@click.option(
    "--good", default="", metavar="COMMIT", help="The commit with the fix or change; default: the working tree."
)
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=_FOLDER,
    show_default=True,
    metavar="FOLDER",
    help="Where the test and its recording go.",
)
@click.option("--name", default="", metavar="NAME", help="Name of the test; default: the call's, and the run's id.")
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def promote_command(
    *,
    source: str,
    command: tuple[str, ...],
    number: int | None,
    is_same: bool,
    bad: str,
    good: str,
    folder: Path,
    name: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Write a test that fails while a recorded mistake is still made; it makes no live calls.

    The test is tried first: it must fail at --bad and pass at --good, or nothing is written. It passes as long as the
    code behaves like that of --good; if the run changes elsewhere before the call, the test fails and says so.

    With --same it is a test that fails when a run that was right changes: its replays at --bad and at --good must both
    be identical.

    \b
    spanreplay promote 0192f3a4b5c67 --never 7 -- python agent.py
    spanreplay promote 0192f3a4b5c67 --same -- python agent.py
    """
    if (number is None) is not is_same:
        raise click.UsageError(
            "name the call that must not be made again (--never N), or say --same if the run was right"
        )
    with work_folder() as work:
        found = open_source(source, work)
        agent = find_recorded_agent(command, found.recording)
        check_not_isolated(agent)
        name = _choose_name(name, found.recording, number)
        repository = Repository(Path.cwd())
        replays = Replays(found, agent, repository, work, timeout_s)
        before = repository.find(bad or str(found.recording.root.env.get("git_sha") or "HEAD"))
        after = repository.find(good) if good else ""
        told: dict[str, Any] = {"same": True}
        if number is None:
            _prove_same(replays, before, after)
        else:
            told = {"never": number, "instead": list(_prove(replays, number, before, after))}
        files = _write(found, folder, name, told, agent)
    if as_json:
        print_json({"run_id": found.recording.run_id, **told, "files": files})
    else:
        print_data("\n".join(files))
        say(f"run it: pytest {files[0]}")


def _choose_name(name: str, recording: Recording, number: int | None) -> str:
    """The test's name. Raises: ConfigError if there is no such call, or the name is not valid for a test."""
    call = next((each for each in recording.calls if each.number == number), None)
    if call is None and number is not None:
        raise ConfigError(
            f"run {recording.run_id} has no call {number}; it has {len(recording.calls):,}",
            hint=f"spanreplay show {recording.run_id}",
        )
    kind, subject = ("same", recording.root.app) if call is None else ("no", call.name)
    words = re.sub(r"[^a-z0-9]+", "_", subject.lower()).strip("_")[:40] or ("run" if call is None else call.kind)
    chosen = name or f"{kind}_{words}_{recording.run_id[:13]}"
    if not _NAME.match(chosen):
        raise ConfigError(
            f"{chosen!r} is not a valid name for a test",
            hint="--name takes lower-case letters, digits and _, at most 61 characters",
        )
    return chosen


# ── the proof ───────────────────────────────────────────────────────────────────────────────────────
def _prove(replays: Replays, number: int, bad: str, good: str) -> Instead:
    """How the good code diverges from the recording. Raises: ConfigError unless bad code fails and good code passes."""
    call = next(each for each in replays.recording.calls if each.number == number)
    where, verdict = bad[:SHORT], replays.replay(bad)
    _tell(where, verdict)
    _refuse_broken(where, verdict)
    if not _is_made(where, verdict, call):
        raise ConfigError(
            f"call {number} is not made at {where}, so a test would pass there and prove nothing",
            hint="choose a --bad commit that makes it: the recording's, if its code was committed",
        )
    where = good[:SHORT] or _HERE
    verdict = replays.replay(good) if good else replays.replay_here()
    _tell(where, verdict)
    _refuse_broken(where, verdict)
    if _is_made(where, verdict, call):
        raise ConfigError(
            f"call {number} is made at {where} too, so a test would fail there",
            hint="fix the code first, or choose a --good commit that does not make it",
        )
    instead = find_instead(verdict)
    if instead is None:
        raise ConfigError(f"the replay at {where} says nothing about call {number}: {describe_shortly(verdict)}")
    if 0 < instead[2] < number:
        say(f"  the run already diverges at call {instead[2]}; the test expects that too")
    return instead


def _prove_same(replays: Replays, before: str, after: str) -> None:
    """Raises: ConfigError, which names the commit, unless the run is identical at both."""
    for sha in (before, after):
        where = sha[:SHORT] or _HERE
        verdict = replays.replay(sha) if sha else replays.replay_here()
        _tell(where, verdict)
        if verdict["verdict"] != IDENTICAL:
            raise ConfigError(
                f"the run is not identical at {where}, so a test would fail there: {describe_shortly(verdict)}",
                hint="--same needs a complete run that is equal at both commits: choose others, or record again",
            )


def _is_made(where: str, verdict: Verdict, call: CallRecord) -> bool:
    try:
        return is_made(verdict, call.span_id)
    except RuntimeError as exc:
        raise ConfigError(f"the replay at {where} says nothing about call {call.number}: {exc}") from exc


def _refuse_broken(where: str, verdict: Verdict) -> None:
    if verdict["verdict"] not in ("identical", "diverged", "incomplete"):
        raise ConfigError(f"the run can't be replayed at {where}: {describe_shortly(verdict)}")


def _tell(where: str, verdict: Verdict) -> None:
    say(f"{where}  {describe_shortly(verdict)}")


# ── the files ───────────────────────────────────────────────────────────────────────────────────────
def _write(found: Source, folder: Path, name: str, told: Mapping[str, Any], agent: Agent) -> list[str]:
    """Write the test and its recording; return their paths. Raises: ConfigError if the test already exists."""
    test = folder / f"test_{name}.py"
    if test.exists():
        raise ConfigError(f"{test} already exists", hint="choose another name with --name")
    folder.mkdir(parents=True, exist_ok=True)
    recordings = _write_recordings(found, folder)
    up = os.path.relpath(Path.cwd(), folder.absolute())
    text = (_TEST if "never" in told else _SAME_TEST).format(
        run_id=found.recording.run_id,
        name=name,
        number=told.get("never"),
        file=recordings[0].name,
        instead=tuple(told.get("instead", ())),
        command=_describe_command(agent),
        cwd=up,
    )
    test.write_text(text, encoding="utf-8")
    return [str(test), *map(str, recordings)]


def _write_recordings(found: Source, folder: Path) -> list[Path]:
    """Write the run; for a unit, also the runs of its process, which its replay starts from."""
    unit = find_unit(found.recording.root.env)
    names = [f"{run_id}.replay" for run_id in (found.recording.run_id, *(unit.runs if unit is not None else ()))]
    if found.is_at_service:
        with runs.open_catalog() as catalog:
            write_file(catalog, found.recording, folder)
    else:
        source = Path(found.name)
        for name in names:
            beside = source if name == names[0] else source.with_name(name)
            if beside.is_file():
                shutil.copyfile(beside, folder / name)
    return [folder / name for name in names if (folder / name).is_file()]


def _describe_command(agent: Agent) -> str:
    """The command as Python source, without paths of this machine; its Python becomes `sys.executable`."""
    first = "sys.executable" if agent.python == agent.argv[0] else repr(Path(agent.argv[0]).name)
    here = Path.cwd().resolve()
    words = [
        str(Path(word).resolve().relative_to(here))
        if Path(word).is_absolute() and Path(word).resolve().is_relative_to(here)
        else word
        for word in agent.argv[1:]
    ]
    return f"{', '.join([first, *map(repr, words)])}{'' if words else ','}"
