"""Decides whether a replay with other answers went wrong: by a command that the user gives, or by itself.

By itself it looks for three things: the agent ends with an exception or exit status that it did not have with the
recorded answers; it makes a call of a kind that the recorded run never makes; it does not end.
"""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from typing import Final

from spanreplay.cli.agent.child import describe_end
from spanreplay.cli.variations.trials import Trial, as_json
from spanreplay.model.call import Recording
from spanreplay.model.errors import ConfigError
from spanreplay.report.shape import Divergence

__all__ = ["BROKEN", "LEFT", "CheckedJudge", "Failure", "Judge", "OwnJudge", "Unknown", "find_new_call", "find_stopped"]

LEFT, BROKEN = "left", "broken"
_CANNOT_TELL: Final = 125
"""Exit status of a check that can't tell, as for `git bisect run`."""
_KNOWN: Final = ("identical", "diverged", "incomplete")
_STOPPED: Final = frozenset({"extra_call", "unserializable", "stream_overrun", "order_stall", "effect_blocked"})
"""Kinds of divergences at which a replay stops although changes are served."""


@dataclass(frozen=True)
class Failure:
    """How a replay went wrong: `name` is the same for the same failure, `message` has the details."""

    name: str
    message: str


@dataclass(frozen=True)
class Unknown:
    """A replay that says nothing: it `left` the recording, whose answers ended, or `broken`: it has no verdict."""

    what: str
    why: str


class Judge:
    """Judges trials; can be used from several threads."""

    def judge(self, trial: Trial) -> Failure | Unknown | None:
        """How a replay went wrong; None: it did not. Raises: ConfigError if the check can't be run."""
        raise NotImplementedError


class OwnJudge(Judge):
    """Compares a trial with that of the recorded answers."""

    def __init__(self, recording: Recording, unchanged: Trial) -> None:
        self._boundaries = {call.boundary for call in recording.calls}
        self._status = unchanged.status
        self._raised = {name for name, _ in _find_raised(unchanged)}

    def judge(self, trial: Trial) -> Failure | Unknown | None:
        if trial.is_endless:
            return Failure("endless", trial.why)
        broken = _find_broken(trial)
        if broken is not None:
            return broken
        new = find_new_call(trial, self._boundaries)
        if new is not None:
            message = f"it calls {new['boundary']}, which the recorded run never does ({new['code']})"
            return Failure(f"calls {new['boundary']}", message)
        stopped = find_stopped(trial)
        if stopped is not None:
            return Unknown(LEFT, str(stopped["message"]))
        for name, message in _find_raised(trial):
            if name not in self._raised:
                return Failure(name, message)
        if trial.status != self._status:
            return Failure(f"exit {trial.status}", f"the agent {describe_end(trial.status)}")
        return None


class CheckedJudge(Judge):
    """Asks a command, which gets the trial as JSON: 0 says that all is well, 125 that it can't tell."""

    def __init__(self, command: str, timeout_s: int) -> None:
        """Raises: ConfigError if the command can't be read."""
        try:
            self._words = shlex.split(command)
        except ValueError as exc:
            raise ConfigError(f"--check {command!r} can't be read: {exc}") from exc
        if not self._words:
            raise ConfigError("--check is empty", hint="for example: --check 'python check.py'")
        self._timeout_s = timeout_s

    def judge(self, trial: Trial) -> Failure | Unknown | None:
        broken = _find_broken(trial)
        if broken is not None:
            return broken
        try:
            done = subprocess.run(
                self._words,
                input=as_json(trial),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
                check=False,
            )
        except OSError as exc:
            raise ConfigError(f"cannot run the check {self._words[0]!r}: {exc.strerror or exc}") from exc
        except subprocess.TimeoutExpired as exc:
            raise ConfigError(f"the check did not end within {self._timeout_s} s", hint="see --timeout") from exc
        if not done.returncode:
            return None
        said = next((line for line in reversed((done.stdout + done.stderr).splitlines()) if line.strip()), "")
        if done.returncode == _CANNOT_TELL:
            return Unknown(LEFT, said or "the check can't tell")
        stopped = find_stopped(trial)
        more = "" if stopped is None else f" (the replay stopped: {stopped['message']})"
        return Failure(f"check {done.returncode}", (said or f"the check {describe_end(done.returncode)}") + more)


def _find_broken(trial: Trial) -> Unknown | None:
    if trial.verdict is None:
        return Unknown(BROKEN, trial.why)
    word = trial.verdict["verdict"]
    return None if word in _KNOWN else Unknown(BROKEN, str(trial.verdict.get("error") or word))


def _divergences(trial: Trial) -> list[Divergence]:
    return [] if trial.verdict is None else list(trial.verdict.get("divergences", []))


def find_new_call(trial: Trial, boundaries: set[str]) -> Divergence | None:
    """The first call of a kind that the recorded run does not make."""
    extra = (each for each in _divergences(trial) if each["kind"] == "extra_call")
    return next((each for each in extra if each["boundary"] not in boundaries), None)


def find_stopped(trial: Trial) -> Divergence | None:
    """Where a replay stopped although changes are served; what would have followed is unknown."""
    return next((each for each in _divergences(trial) if each["kind"] in _STOPPED), None)


def _find_raised(trial: Trial) -> list[tuple[str, str]]:
    """Exceptions with which the agent ended: a name that has the class and place, and the whole message."""
    found = (each for each in _divergences(trial) if each["kind"] == "raised")
    return [(f"{each['message'].partition(' after ')[0]} at {each['code']}", each["message"]) for each in found]
