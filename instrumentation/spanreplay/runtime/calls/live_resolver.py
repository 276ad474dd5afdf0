"""The calls of a run while it is recorded: each is made, and what fails of ours is counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from spanreplay.model import config, guard
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.process.own_environment import OwnEnvironment

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord, Outcome
    from spanreplay.runtime.answers import Answers


class Counting(Protocol):
    """A run, as far as what it holds and lacks is concerned."""

    calls: int
    environment: Mapping[str, Any]

    def count(self, name: str, by: int = 1) -> None:
        """Add to one of the manifest's counters."""

    def hole(self, reason: str) -> None:
        """Something that makes the recording impossible to replay whole."""


class LiveResolver:
    """Answers no call of one run; see `Resolver`. An error that is made here, nobody is told of."""

    may_amend = False
    swallows_telemetry = False

    def __init__(self, run: Counting) -> None:
        self._run = run
        self.variables = OwnEnvironment()

    @property
    def answers(self) -> Answers:
        """Raises: AssertionError."""
        raise AssertionError("only a replay serves calls")

    @property
    def environment(self) -> Mapping[str, Any]:
        """The run's own."""
        return self._run.environment

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────
    def admits_call(self) -> bool:
        """Whether the run has room for one more; counted if it has not."""
        has_room = self._run.calls < config.CALLS_MAX
        if not has_room:
            self._run.count("dropped")
        return has_room

    def resolve(self, crossing: Any) -> None:
        """No-op: the call is made."""

    def settle(self, crossing: Any, outcome: Outcome, response: str) -> None:
        """No-op: there is nothing to compare it with."""

    def find_recorded(self, crossing: Any) -> CallRecord | None:
        """None."""
        return None

    # ── what is missing ─────────────────────────────────────────────────────────────────────────────
    def fail(self, exc: Exception) -> None:
        """The call is made, and is not in the run."""
        self._run.count("dropped")
        guard.report_failure("describing a call", exc)

    def leave_out(self, hole: str, miss: str = "") -> None:
        """The run is incomplete."""
        self._run.hole(hole)

    def broken(self, message: str) -> ReplayMiss:
        """The error."""
        return ReplayMiss(message)

    def overrun(self, crossing: Any) -> ReplayMiss:
        """The error."""
        return ReplayMiss("more was read than was recorded")
