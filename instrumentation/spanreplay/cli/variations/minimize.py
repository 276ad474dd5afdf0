"""`spanreplay minimize`: the smallest recording with which an agent still fails in the same way."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import click

from spanreplay.cli.agent.child import describe_end
from spanreplay.cli.agent.launch import check_not_isolated, find_agent
from spanreplay.cli.replay import open_source, work_folder
from spanreplay.cli.runs import runs
from spanreplay.cli.terminal import counting, echo, print_json, say
from spanreplay.cli.variations.derive import derive_trial, open_trials, write_recording
from spanreplay.cli.variations.judge import CheckedJudge, Failure, Judge, Unknown, find_stopped
from spanreplay.cli.variations.starts import Starts
from spanreplay.cli.variations.trials import SERVE, Trial, Trials, timeout_option
from spanreplay.model.call import Recording
from spanreplay.model.errors import ConfigError, SpanreplayError
from spanreplay.recording.derived import describe_origin
from spanreplay.replayer.variations.reduce import Reducer, answer_characters
from spanreplay.report.words import plural

__all__ = ["minimize_command"]

TRIES_MAX: Final = 100_000
_PLACE: Final = re.compile(r'  File "([^"]*)", line (\d+), in ')
_RAISED: Final = re.compile(r"([A-Za-z_][\w.]*)(?::.*)?\Z")


class _EndJudge(Judge):
    """The failure is how the agent ends: its exit status, and the exception with its place if it prints one."""

    def judge(self, trial: Trial) -> Failure | Unknown | None:
        if not trial.status:
            return None
        lines = [line for line in trial.stderr.splitlines() if line.strip()]
        places = [place for line in lines if (place := _PLACE.match(line))]
        raised = _RAISED.match(lines[-1]) if places else None
        if raised is None:
            return Failure(f"exit {trial.status}", f"the agent {describe_end(trial.status)}")
        at = f"{Path(places[-1][1]).name}:{places[-1][2]}"
        return Failure(f"exit {trial.status}, {raised[1]} at {at}", f"{lines[-1]} ({at})")


@click.command("minimize")
@click.argument("source", metavar="RUN", shell_complete=runs.complete_run)
@click.argument("command", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--check",
    metavar="CMD",
    help="A command that gets a replay as JSON on standard input and exits with another status than 0 and 125 if it "
    "fails; default: the agent ends as it did.",
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="The .replay file to write."
)
@click.option(
    "-n",
    "count",
    type=click.IntRange(1, TRIES_MAX),
    default=1000,
    show_default=True,
    help="The largest number of replays.",
)
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def minimize_command(
    *,
    source: str,
    command: tuple[str, ...],
    check: str | None,
    output: Path | None,
    count: int,
    timeout: int,
    as_json: bool,
) -> None:
    """Write the smallest recording with which the agent still fails in the same way, without a live call.

    Calls are left out, first in halves, then one by one; then fields, elements and text of the answers. After each
    step the agent is replayed: what it does then is kept if it still fails. The failure is the exit status and the
    exception with which RUN ends, or what --check finds, as for `spanreplay fuzz`.

    The result is a recording of its own, which replays as it says; it names RUN and does not show what happened.
    The same recording, agent and check give the same bytes.

    \b
    spanreplay minimize latest -o small.replay -- python agent.py
    spanreplay minimize latest --check 'python check.py' -- python agent.py
    """
    agent = find_agent(command)
    check_not_isolated(agent)
    with work_folder() as folder, Starts() as starts:
        found = open_source(source, folder)
        trials = Trials(agent, found, folder, timeout, is_kept=True, starts=starts)
        judge = _EndJudge() if check is None else CheckedJudge(check, timeout)
        with counting("minimizing", count) as told:
            search = _Minimizing(trials, judge)
            reducer = Reducer(search.start(), search.keep, count, told)
            small = reducer.reduce()
        path = output or Path(f"{small.run_id}.replay")
        try:
            trial = write_recording(trials, small, path)
        except SpanreplayError as exc:
            raise SpanreplayError(f"the smallest recording found can't be used: {exc}", hint=exc.hint) from exc
        if search.name(trial) != search.failure.name:
            path.unlink()
            raise SpanreplayError(
                "the smallest recording found does not fail in the same way when it is replayed alone"
            )
    _tell(path, small, search, reducer, as_json=as_json)


class _Minimizing:
    """Replays candidates, and keeps what the agent did if it failed in the same way."""

    def __init__(self, trials: Trials, judge: Judge) -> None:
        self.recording = trials.found.recording
        self._trials, self._judge = trials, judge
        self.failure = Failure("", "")

    def start(self) -> Recording:
        """What the agent does with the whole recording. Raises: ConfigError if it does not fail."""
        trial = self._trials.replay((), SERVE)
        judged = self._judge.judge(trial)
        if not isinstance(judged, Failure) or trial.verdict is None:
            why = trial.why or (judged.why if isinstance(judged, Unknown) else "it ends well")
            raise ConfigError(
                f"the agent does not fail with this recording, so there is nothing to keep: {why}",
                hint="--check 'CMD' says what a failure is",
            )
        stopped = find_stopped(trial)
        if stopped is not None:
            raise ConfigError(f"the agent leaves this recording before it fails: {stopped['message']}")
        self.failure = judged
        return derive_trial(self.recording, trial, self._origin())

    def _origin(self) -> dict[str, Any]:
        return {"by": "minimize", "failure": self.failure.name}

    def name(self, trial: Trial) -> str:
        """The failure of a trial that ran to its end; '' if it has none."""
        if trial.verdict is None or find_stopped(trial) is not None:
            return ""
        judged = self._judge.judge(trial)
        return judged.name if isinstance(judged, Failure) else ""

    def keep(self, candidate: Recording) -> Recording | None:
        """The recording of what the agent does with a candidate, if it fails in the same way."""
        trial = open_trials(self._trials, candidate).replay((), SERVE)
        if self.name(trial) != self.failure.name:
            return None
        answers = Recording(self.recording.root, candidate.calls)
        try:
            return derive_trial(answers, trial, self._origin())
        except SpanreplayError:
            return None


def _tell(path: Path, small: Recording, search: _Minimizing, reducer: Reducer, *, as_json: bool) -> None:
    before, after = answer_characters(search.recording), answer_characters(small)
    told = {
        "file": str(path),
        "run_id": small.run_id,
        "from": search.recording.run_id,
        "failure": search.failure.message,
        "calls": {"before": len(search.recording.calls), "now": len(small.calls)},
        "answer_characters": {"before": before, "now": after},
        "replays": reducer.tries,
        "is_whole": not reducer.is_spent,
    }
    if as_json:
        print_json(told)
        return
    echo(str(path))
    say(f"{search.failure.message}")
    say(
        f"{len(small.calls)} of {plural(len(search.recording.calls), 'call')}, {after:,} of {before:,} characters of "
        f"answers; {plural(reducer.tries, 'replay')}, no live call"
    )
    if reducer.is_spent:
        say("the search ended at -n: more replays may find a smaller one")
    say(describe_origin(small))
