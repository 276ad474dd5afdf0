"""The resolver of a run that is being recorded: every call is made, and our own failures are counted."""

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
    """The part of a run that counts its calls and losses."""

    calls: int
    environment: Mapping[str, Any]

    def count(self, name: str, by: int = 1) -> None:
        """Add to one of the manifest's counters."""

    def hole(self, reason: str) -> None:
        """Note a reason why the recording can't be replayed completely."""


class LiveResolver:
    """Makes every call of a run live; see `Resolver`. The errors created here are never shown to anybody."""

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
        """Whether the run has room for one more call; counted if not."""
        has_room = self._run.calls < config.CALLS_MAX
        if not has_room:
            self._run.count("dropped")
        return has_room

    def resolve(self, crossing: Any) -> None:
        """No-op: the call is made."""

    def settle(self, crossing: Any, outcome: Outcome, response: str) -> None:
        """No-op: there is nothing to compare the call with."""

    def find_recorded(self, crossing: Any) -> CallRecord | None:
        """None."""
        return None

    # ── what is missing ─────────────────────────────────────────────────────────────────────────────
    def fail(self, exc: Exception) -> None:
        """Count a call that can't be described: it is made but is not in the run."""
        self._run.count("dropped")
        guard.report_failure("describing a call", exc)

    def leave_out(self, hole: str, miss: str = "") -> None:
        """Mark the run as incomplete."""
        self._run.hole(hole)

    def broken(self, message: str) -> ReplayMiss:
        """The error."""
        return ReplayMiss(message)

    def overrun(self, crossing: Any) -> ReplayMiss:
        """The error."""
        return ReplayMiss("more was read than was recorded")
