"""`spanreplay mutate`: change one recorded field at a time to see which fields the outcome depends on."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import click

from spanreplay.cli.agent.launch import check_not_isolated, find_agent
from spanreplay.cli.replay import open_source, work_folder
from spanreplay.cli.runs import runs
from spanreplay.cli.terminal import counting, open_console, print_json, say
from spanreplay.cli.variations.starts import Starts
from spanreplay.cli.variations.trials import Trial, Trials, jobs_option, only_option, timeout_option
from spanreplay.model.errors import ConfigError
from spanreplay.replayer.variations.mutations import Mutation, find_mutations

TEXT_SHOWN: Final = 60
MUTATIONS_MAX: Final = 10_000
NOTHING, CALLS, OUTPUT, BROKEN = "nothing", "calls", "output", "broken"
_WORDS: Final = {NOTHING: "nothing", CALLS: "another call", OUTPUT: "the output", BROKEN: "the replay broke"}


@click.command("mutate")
@click.argument("source", metavar="RUN", shell_complete=runs.complete_run)
@click.argument("command", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "-n",
    "count",
    type=click.IntRange(1, MUTATIONS_MAX),
    default=50,
    show_default=True,
    help="The largest number of fields to change.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed for choosing fields if there are more than -n."
)
@only_option
@click.option("--field", "fields", default="*", metavar="GLOB", help="Change only these fields, e.g. 'usage.*'.")
@jobs_option
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def mutate_command(
    *, source: str, command: tuple[str, ...], jobs: int, timeout: int, as_json: bool, **chosen: Any
) -> None:
    """Find out what a recording really tests: change one recorded field at a time, and replay.

    Each field in the answer of a model, tool or server is changed alone, and the agent is replayed with it, offline and
    without side effects. If the change of a field has no effect, this recording can't reveal a bug in its use; a field
    that changes the output or a later call is decisive.

    \b
    spanreplay mutate latest -- python agent.py
    spanreplay mutate incident.replay -n 200 --only 'tool:*' -- python agent.py
    """
    agent = find_agent(command)
    check_not_isolated(agent)
    with work_folder() as folder, Starts() as starts:
        found = open_source(source, folder)
        mutations = find_mutations(found.recording, **chosen)
        if not mutations:
            raise ConfigError(f"no answer in this run has a field that could be changed (--only {chosen['only']!r})")
        trials = Trials(agent, found, folder, timeout, starts=starts)
        _check_identical(trials.replay(()))
        results = []
        with ThreadPoolExecutor(jobs) as pool, counting("mutating", len(mutations)) as told:
            done = pool.map(lambda m: trials.replay((m.patch,)), mutations)
            for number, (mutation, trial) in enumerate(zip(mutations, done, strict=True), start=1):
                results.append(_describe(mutation, trial))
                told(number)
    if as_json:
        print_json({"run_id": found.recording.run_id, "seed": chosen["seed"], "mutations": results})
    else:
        _print(results)


def _check_identical(trial: Trial) -> None:
    word = trial.why if trial.verdict is None else trial.verdict["verdict"]
    if word != "identical":
        raise ConfigError(
            f"the unchanged run does not replay identically ({word}), so nothing can be learned from changing it",
            hint="spanreplay replay RUN -- CMD shows why",
        )


def _describe(mutation: Mutation, trial: Trial) -> dict[str, Any]:
    effect, detail = _judge(mutation, trial)
    return {
        "call": mutation.call,
        "boundary": mutation.boundary,
        "field": mutation.field,
        "before": mutation.before,
        "now": mutation.now,
        "effect": effect,
        "detail": detail,
        "set": mutation.patch,
    }


def _judge(mutation: Mutation, trial: Trial) -> tuple[str, str]:
    """The effect of a mutation and its first difference; the mutated answer itself does not count as one."""
    verdict = trial.verdict
    if verdict is None:
        return BROKEN, trial.why
    if verdict["verdict"] not in ("identical", "diverged"):
        return BROKEN, verdict["verdict"]
    found = [
        d
        for d in verdict.get("divergences", [])
        if not (d["kind"] == "output_changed" and d["boundary"] == mutation.boundary)
    ]
    calls = [d for d in found if d["kind"] != "output_changed"]
    if calls:
        return CALLS, str(calls[0]["message"])
    if found:
        return OUTPUT, str(found[0]["message"])
    return (NOTHING, "") if verdict.get("stdout", {}).get("equal", True) else (OUTPUT, "standard output differs")


def _print(results: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("Call", "Field", "Changed", "What it changes", box=None, pad_edge=False)
    for row in results:
        effect = _WORDS[row["effect"]]
        table.add_row(
            f"{row['call']} {row['boundary']}",
            _plain(row["field"]),
            _plain(f"{_short(row['before'])} → {_short(row['now'])}"),
            _plain(f"{effect}: {row['detail']}" if row["detail"] else effect),
        )
    open_console().print(table, soft_wrap=True)
    counts = Counter(row["effect"] for row in results)
    decisive = len(results) - counts[NOTHING]
    say(f"{decisive} of {len(results)} fields affect the outcome; {counts[NOTHING]} don't")


def _plain(text: str) -> Any:
    from rich.text import Text

    return Text(text)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= TEXT_SHOWN else text[: TEXT_SHOWN - 1] + "…"
