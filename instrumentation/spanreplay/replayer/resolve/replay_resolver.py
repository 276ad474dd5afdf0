"""The resolver of a run that is being replayed: the session answers its calls, and a missing answer ends the replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spanreplay.model.call import CallRecord, Outcome
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.answers import Answers, RecordedEnvironment


class ReplayResolver:
    """Asks a session for each call of one run; see `Resolver`."""

    may_amend = True
    swallows_telemetry = True

    def __init__(self, answers: Answers) -> None:
        self.answers = answers

    @property
    def variables(self) -> RecordedEnvironment:
        """The recorded variables."""
        return self.answers.recorded_env

    @property
    def environment(self) -> Mapping[str, Any]:
        """The recorded run's environment."""
        return self.answers.recording.root.env

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────
    def admits_call(self) -> bool:
        """True: a call that is let through would go live."""
        return True

    def resolve(self, crossing: Any) -> None:
        """Find the recorded answer. Raises: ReplayMiss."""
        self.answers.resolve(crossing)

    def settle(self, crossing: Any, outcome: Outcome, response: str) -> None:
        """Compare the call with the recorded one."""
        self.answers.settle_live(crossing, outcome, response)

    def find_recorded(self, crossing: Any) -> CallRecord | None:
        """The recorded call in this one's place."""
        return self.answers.index.at(crossing.lane.path, crossing.boundary, crossing.index)

    # ── what is missing ─────────────────────────────────────────────────────────────────────────────
    def fail(self, exc: Exception) -> None:
        """Raises: ReplayMiss; going on would go live."""
        raise self.broken(f"spanreplay could not describe a call: {type(exc).__name__}") from exc

    def leave_out(self, hole: str, miss: str = "") -> None:
        """Raises: ReplayMiss."""
        raise self.answers.at_hole(miss or hole)

    def broken(self, message: str) -> ReplayMiss:
        """The error, which is noted for the verdict."""
        return self.answers.broken(message)

    def overrun(self, crossing: Any) -> ReplayMiss:
        """The error, which is a divergence."""
        return self.answers.overrun(crossing)
