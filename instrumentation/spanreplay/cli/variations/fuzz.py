"""`spanreplay fuzz`: look for answers near the recorded ones with which the agent fails, and make each one small."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from spanreplay.cli.agent.launch import Agent, check_not_isolated, find_agent
from spanreplay.cli.replay import open_source, work_folder
from spanreplay.cli.runs import runs
from spanreplay.cli.terminal import counting, echo, print_json, say
from spanreplay.cli.variations.derive import derive_trial, write_recording
from spanreplay.cli.variations.judge import BROKEN, LEFT, CheckedJudge, Failure, Judge, OwnJudge, Unknown
from spanreplay.cli.variations.starts import Starts
from spanreplay.cli.variations.trials import SERVE, Trial, Trials, jobs_option, only_option, timeout_option
from spanreplay.model.errors import ConfigError, SpanreplayError
from spanreplay.replayer.variations.seeded import draw_variations
from spanreplay.replayer.variations.shrink import shrink
from spanreplay.replayer.variations.sites import KINDS, Variation, find_fields, patch_answers
from spanreplay.report.shape import EXIT_STATUS
from spanreplay.report.words import plural

__all__ = ["fuzz_command"]

VARIATIONS_MAX: Final = 100_000
FINDINGS_MAX: Final = 20
"""Different failures that are made small; more are counted."""
SHRINK_TRIES_MAX: Final = 80
"""Largest number of replays that make one failure small."""
_BATCH: Final = 4
"""Variations for each job that are replayed before the next look at what was found."""


@dataclass
class _Finding:
    """One failure, with the first variation that showed it and the number of variations that did."""

    failure: Failure
    variation: Variation
    at: int
    times: int = 1
    is_same: bool = True
    replays: int = 0
    trial: Trial | None = None
    saved: str = ""
    unsaved: str = ""
    """Why it could not be saved."""


@dataclass
class _Search:
    """What a search has found so far."""

    findings: dict[str, _Finding] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)
    more: set[str] = field(default_factory=set)
    replays: int = 0


@click.command("fuzz")
@click.argument("source", metavar="RUN", shell_complete=runs.complete_run)
@click.argument("command", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "-n",
    "count",
    type=click.IntRange(1, VARIATIONS_MAX),
    default=200,
    show_default=True,
    help="The number of variations to replay.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for drawing variations.")
@click.option(
    "--check",
    metavar="CMD",
    help="A command that gets a replay as JSON on standard input and exits with 0 if all is well, 125 if it can't "
    "tell; default: see above.",
)
@only_option
@click.option("--field", "fields", default="*", metavar="GLOB", help="Change only these fields, e.g. 'items*'.")
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Make only changes of this kind; repeatable."
)
@click.option("--first", "is_first", is_flag=True, help="Stop at the first failure.")
@click.option(
    "--save",
    "save",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write each failure as a recording, which replays it without options.",
)
@jobs_option
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def fuzz_command(
    ctx: click.Context,
    /,
    *,
    source: str,
    command: tuple[str, ...],
    count: int,
    seed: int,
    check: str | None,
    kinds: tuple[str, ...],
    is_first: bool,
    save: Path | None,
    jobs: int,
    timeout: int,
    as_json: bool,
    **chosen: str,
) -> None:
    """Find answers near the recorded ones with which the agent fails, without a live call.

    Each variation changes a few fields in the recorded answers of models, tools and people: other numbers and texts,
    lists that are empty or in another order, missing and additional fields, errors, streams that break off. The
    agent is replayed with it, offline; calls that differ afterwards get the recorded answers. Each different failure is
    reduced to the fewest and smallest changes that still cause it, and printed as options for `spanreplay replay`.

    A failure is, unless --check decides: an exception or exit status that the unchanged run does not have, a call of a
    kind that the recorded run never makes, or a replay that does not end.

    \b
    spanreplay fuzz latest --seed 7 -n 200 -- python agent.py
    spanreplay fuzz incident.replay --check 'python check.py' --only 'tool:*' -- python agent.py

    Exit status: 0 no failure, 1 error, 2 wrong usage, 3 failures found.
    """
    agent = find_agent(command)
    check_not_isolated(agent)
    with work_folder() as folder, Starts() as starts:
        found = open_source(source, folder)
        fields = find_fields(found.recording, kinds=kinds or KINDS, **chosen)
        variations = draw_variations(fields, count, seed)
        if not variations:
            raise ConfigError(f"no answer in this run has a field that could be changed (--only {chosen['only']!r})")
        is_kept = check is not None or save is not None
        trials = Trials(agent, found, folder, timeout, is_kept=is_kept, starts=starts)
        judge = _make_judge(check, trials, timeout)
        search = _find(variations, trials, judge, jobs, is_first=is_first)
        _reduce(search, trials, judge, jobs)
        if save is not None:
            _save(search, trials, save, seed)
    results = [_describe(each, source, agent) for each in sorted(search.findings.values(), key=_rank)]
    if as_json:
        told = {"run_id": found.recording.run_id, "seed": seed, "variations": len(variations), **_count(search)}
        print_json({**told, "findings": results})
    else:
        _print(results, search, len(variations))
    if results:
        ctx.exit(EXIT_STATUS["diverged"])


def _make_judge(check: str | None, trials: Trials, timeout: int) -> Judge:
    """The judge, after it has seen the unchanged run. Raises: ConfigError if that fails already."""
    unchanged = trials.replay((), SERVE)
    judge = OwnJudge(trials.found.recording, unchanged) if check is None else CheckedJudge(check, timeout)
    found = judge.judge(unchanged)
    if found is not None:
        why = found.message if isinstance(found, Failure) else found.why
        raise ConfigError(
            f"the unchanged run does not pass, so nothing can be learned from changing it: {why}",
            hint="spanreplay replay RUN -- CMD shows why",
        )
    if unchanged.verdict is not None and unchanged.verdict["verdict"] != "identical":
        say(f"the unchanged run is {unchanged.verdict['verdict']}: the agent is not that of the recording any more")
    return judge


def _patches(variation: Variation) -> tuple[str, ...]:
    return tuple(change.patch for change in variation)


def _find(variations: Sequence[Variation], trials: Trials, judge: Judge, jobs: int, *, is_first: bool) -> _Search:
    search = _Search()
    with ThreadPoolExecutor(jobs) as pool, counting("fuzzing", len(variations)) as told:
        step = jobs * _BATCH
        for start in range(0, len(variations), step):
            batch = variations[start : start + step]
            judged = pool.map(lambda each: judge.judge(trials.replay(_patches(each), SERVE)), batch)
            for at, (variation, result) in enumerate(zip(batch, judged, strict=True), start=start + 1):
                _note(search, variation, result, at)
                told(at)
                if is_first and search.findings:
                    return search
    return search


def _note(search: _Search, variation: Variation, result: Failure | Unknown | None, at: int) -> None:
    search.replays += 1
    if isinstance(result, Unknown):
        search.unknown[result.what] += 1
    if not isinstance(result, Failure):
        return
    known = search.findings.get(result.name)
    if known is not None:
        known.times += 1
    elif len(search.findings) < FINDINGS_MAX:
        search.findings[result.name] = _Finding(result, variation, at)
    else:
        search.more.add(result.name)


# ── making it small ─────────────────────────────────────────────────────────────────────────────────
def _reduce(search: _Search, trials: Trials, judge: Judge, jobs: int) -> None:
    findings = list(search.findings.values())
    with ThreadPoolExecutor(jobs) as pool, counting("reducing", len(findings)) as told:
        for number, _ in enumerate(pool.map(lambda each: _reduce_one(each, trials, judge), findings), start=1):
            told(number)
    search.replays += sum(each.replays for each in findings)


def _reduce_one(finding: _Finding, trials: Trials, judge: Judge) -> None:
    """Make a finding small, and replay the result twice: it must end in the same way each time."""

    def ask(variation: Variation) -> tuple[Trial, Failure | None]:
        finding.replays += 1
        trial = trials.replay(_patches(variation), SERVE)
        judged = judge.judge(trial)
        is_it = isinstance(judged, Failure) and judged.name == finding.failure.name
        return trial, judged if is_it and isinstance(judged, Failure) else None

    finding.variation = shrink(finding.variation, lambda each: ask(each)[1] is not None, SHRINK_TRIES_MAX)
    first, failure = ask(finding.variation)
    again, same = ask(finding.variation)
    finding.is_same = failure is not None and same is not None and first.outcome() == again.outcome()
    finding.failure, finding.trial = failure or finding.failure, first


def _save(search: _Search, trials: Trials, folder: Path, seed: int) -> None:
    for finding in search.findings.values():
        patches = _patches(finding.variation)
        origin = {"by": "fuzz", "seed": seed, "set": list(patches), "failure": finding.failure.name}
        try:
            if finding.trial is None or not finding.is_same:
                raise SpanreplayError("two replays of it differ")
            answers = patch_answers(trials.found.recording, finding.variation)
            recording = derive_trial(answers, finding.trial, origin)
            path = folder / f"{recording.run_id}.replay"
            write_recording(trials, recording, path)
        except SpanreplayError as exc:
            finding.unsaved = str(exc)
        else:
            finding.saved = str(path)


# ── what is told ────────────────────────────────────────────────────────────────────────────────────
def _count(search: _Search) -> dict[str, int]:
    return {
        "replays": search.replays,
        "left": search.unknown[LEFT],
        "broken": search.unknown[BROKEN],
        "more_failures": len(search.more),
    }


def _rank(finding: _Finding) -> tuple[int, int, int]:
    """Failures with likely answers first: other values before missing fields, those before errors."""
    kinds = [KINDS.index(change.site.kind) for change in finding.variation]
    return max(kinds), len(kinds), finding.at


def _describe(finding: _Finding, source: str, agent: Agent) -> dict[str, Any]:
    patches = _patches(finding.variation)
    options = [word for patch in patches for word in ("--set", patch)]
    words = ["spanreplay", "replay", source, "--on-change", SERVE, *options, "--", *agent.argv]
    return {
        "failure": finding.failure.message,
        "name": finding.failure.name,
        "variation": finding.at,
        "times": finding.times,
        "set": list(patches),
        "changes": [
            {"call": change.field.call.number, "boundary": change.field.call.boundary, "field": change.field.path}
            | {"kind": change.site.kind, "before": change.field.before}
            for change in finding.variation
        ],
        "repeats": finding.is_same,
        "command": shlex.join(words),
        **({"saved": finding.saved} if finding.saved else {}),
        **({"not_saved": finding.unsaved} if finding.unsaved else {}),
    }


def _print(results: Sequence[dict[str, Any]], search: _Search, count: int) -> None:
    for row in results:
        echo(f"✘ {row['failure']}")
        for patch in row["set"]:
            echo(f"  --set {shlex.quote(patch)}")
        echo(f"  seen in {plural(row['times'], 'variation')}, first in number {row['variation']}")
        if not row["repeats"]:
            echo("  two replays with these changes differ: the agent has a source of chance that is not recorded")
        echo(f"  {row['command']}")
        if "saved" in row:
            echo(f"  saved as {row['saved']}")
        if "not_saved" in row:
            echo(f"  not saved: {row['not_saved']}")
        echo()
    if search.more:
        say(f"{plural(len(search.more), 'more failure')}; narrow the search with --only, --field or --kind")
    for what, words in ((LEFT, "left the recording, so their end is unknown"), (BROKEN, "ended without a verdict")):
        if search.unknown[what]:
            say(f"{search.unknown[what]} of {count} variations {words}")
    found = plural(len(results), "failure") if results else "no failure"
    say(f"{found} in {plural(count, 'variation')}; {plural(search.replays, 'replay')}, no live call")
