"""`spanreplay sweep`: many forks of one call, each with another change, in one budget; a killed one goes on."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from spanreplay.cli.branches.branch import Branch, Terms, branch_options, check_found, grow
from spanreplay.cli.replay import open_source, work_folder
from spanreplay.cli.runs import runs
from spanreplay.cli.terminal import echo, say
from spanreplay.model.errors import ConfigError
from spanreplay.model.escape import shorten

VARIANTS_MAX: Final = 1_000
TIMES_MAX: Final = 1_000
_SHOWN: Final = 60
OVER, OVER_BUDGET = "over_budget", 6


@click.command("sweep")
@click.argument("source", metavar="RUN", shell_complete=runs.complete_run)
@click.argument("command", metavar="-- CMD...", nargs=-1, type=click.UNPROCESSED)
@click.option("--at", type=click.IntRange(1), metavar="N", required=True, help="The first call that is made live.")
@click.option(
    "--vary",
    "variants",
    multiple=True,
    required=True,
    metavar="PATCH",
    help="One variant: a change of a request, e.g. 'llm[3].temperature = 0'; '' is the unchanged one.",
)
@click.option(
    "--times", type=click.IntRange(1, TIMES_MAX), default=1, show_default=True, help="Branches of each variant."
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="JSON lines, one for each branch; what is in it already is not run again.",
)
@branch_options
@click.option("--json", "as_json", is_flag=True, help="Print each branch as a JSON line, as it is written to FILE.")
@click.pass_context
def sweep_command(
    ctx: click.Context,
    /,
    *,
    source: str,
    command: tuple[str, ...],
    at: int,
    variants: tuple[str, ...],
    times: int,
    out: Path,
    effects: bool,
    max_cost: float | None,
    prices: tuple[str, ...],
    as_json: bool,
) -> None:
    """Fork a run at call N once for each variant, and compare what comes of them.

    A sweep that was killed, or stopped at its budget, goes on when it is started again with the same FILE. The budget
    is that of the whole sweep. Each branch is a run of its own.

    \b
    spanreplay sweep latest --at 5 --times 5 --vary '' --vary 'llm[3].temperature = 0' --out s.jsonl -- python agent.py

    Exit status: 0 if all branches ended; 4 if some did not, 6 if the budget is used up.
    """
    if len(variants) * times > VARIANTS_MAX:
        raise click.UsageError(f"a sweep has at most {VARIANTS_MAX} branches")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"cannot write {out}: its folder is not there")
    with work_folder() as folder:
        found = open_source(source, folder)
        agent = check_found(found, command)
        call = runs.find_call(found.recording, at)
        done = _read(out, found.recording.run_id, at)
        terms = Terms(effects, max_cost, prices)
        for time in range(1, times + 1):
            for variant in variants:
                if any(_is_done(line, variant, time) for line in done):
                    continue
                spent = sum(line["usd"] for line in done)
                if max_cost is not None and spent >= max_cost:
                    _stop(ctx, max_cost, done)
                left = replace(terms, max_cost=None if max_cost is None else max_cost - spent)
                with (folder / "stdout").open("w+b") as stdout:
                    patches = (variant,) if variant else ()
                    branch = grow(agent, found, folder, call, left, patches=patches, stdout=stdout.fileno())
                    stdout.seek(0)
                    line = _line(found.recording.run_id, at, variant, time, branch, stdout.read())
                _append(out, line)
                done.append(line)
                echo(json.dumps(line) if as_json else _describe(line))
                if line["verdict"] == OVER:
                    _stop(ctx, max_cost, done)
    ended = {(line["variant"], line["time"]): line["is_whole"] for line in done}
    ctx.exit(0 if all(ended.values()) else 4)


def _stop(ctx: click.Context, max_cost: float | None, done: list[dict[str, Any]]) -> NoReturn:
    """End at the budget."""
    say(f"the budget of ${max_cost or 0:g} is used up after {len(done)} branches; a larger --max-cost goes on")
    ctx.exit(OVER_BUDGET)


def _read(path: Path, run_id: str, at: int) -> list[dict[str, Any]]:
    """The branches that are in the file already. Raises: ConfigError if it is of another sweep, or no such file."""
    try:
        whole = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot read {path}: {exc}") from exc
    found, lines = [], whole.splitlines()
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
            place = (line["run"], line["at"])
            found.append({**line, "usd": float(line["usd"]), "is_whole": bool(line["is_whole"])})
        except (ValueError, TypeError, KeyError) as exc:
            if number == len(lines) and not whole.endswith("\n"):  # it was killed while it wrote this line
                os.truncate(path, len(whole.encode()) - len(text.encode()))
                break
            raise ConfigError(f"line {number} of {path} is not of a sweep", hint="choose another --out") from exc
        if place != (run_id, at):
            raise ConfigError(f"{path} is of a sweep of run {place[0]} at call {place[1]}", hint="choose another --out")
    return found


def _is_done(line: dict[str, Any], variant: str, time: int) -> bool:
    return (line["variant"], line["time"]) == (variant, time) and line["verdict"] != OVER


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def _line(run_id: str, at: int, variant: str, time: int, branch: Branch, stdout: bytes) -> dict[str, Any]:
    counts = branch.verdict.get("counts", {})
    return {
        "run": run_id,
        "at": at,
        "variant": variant,
        "time": time,
        "verdict": branch.verdict["verdict"],
        "is_whole": branch.is_whole,
        "status": branch.status,
        "branch": branch.run_id,
        "served": counts.get("served", 0),
        "live": counts.get("live", 0),
        "usd": branch.spent_usd,
        "output": hashlib.sha256(stdout).hexdigest()[:12],
        "last_line": shorten((stdout.decode("utf-8", "replace").strip().splitlines() or [""])[-1], _SHOWN),
    }


def _describe(line: dict[str, Any]) -> str:
    variant = shorten(line["variant"], _SHOWN) or "unchanged"
    facts = f"{line['verdict']}  exit {line['status']}  {line['live']} live  {line['output']}  {line['last_line']}"
    return f"{line['branch'][:13]}  {variant}  {facts}"
