"""The resolver of a run that is being recorded: every call is made, and our own failures are counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from spanreplay.model import config, guard
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.order.loops import Levelled, LoopBook, make_book
from spanreplay.runtime.process.own_environment import OwnEnvironment

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord, Outcome
    from spanreplay.runtime.answers import Answers
    from spanreplay.runtime.processes import ProcessGroup


class Counting(Levelled, Protocol):
    """The part of a run that counts its calls and losses."""

    calls: int
    environment: Mapping[str, Any]
    loops: LoopBook | None

    def count(self, name: str, by: int = 1) -> None:
        """Add to one of the manifest's counters."""

    def hole(self, reason: str) -> None:
        """Note a reason why the recording can't be replayed completely."""


class LiveResolver:
    """Makes every call of a run live; see `Resolver`. The errors created here are never shown to anybody."""

    may_amend = False
    swallows_telemetry = False
    connects = True
    keeps = True

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

    # ── the recording ───────────────────────────────────────────────────────────────────────────────
    def has(self, name: str) -> bool:
        """True: it is made now."""
        return True

    def declare(self, name: str, value: Any = True) -> None:
        """State it."""
        self._run.environment = {**self._run.environment, name: value}

    def on_stop(self, callback: Callable[[], None]) -> None:
        """No-op: nothing ends a run early."""

    def insist(self) -> None:
        """No-op."""

    def join(self, shared: ProcessGroup) -> None:
        """Begin to note the steps of event loops anew."""
        self._run.loops = make_book(self._run)

    def to_part(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def add_parts(self, parts: Mapping[int, Mapping[str, Any]]) -> bool:
        """False: their calls count."""
        return False

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────
    def admits_call(self, *, is_http: bool) -> bool:
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
