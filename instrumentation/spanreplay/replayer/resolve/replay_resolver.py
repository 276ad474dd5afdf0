"""The resolver of a run that is being replayed: the session answers its calls, and a missing answer ends the replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.call import CallRecord, Outcome
from spanreplay.model.errors import ReplayMiss
from spanreplay.runtime.answers import Answers, RecordedEnvironment

if TYPE_CHECKING:
    from spanreplay.runtime.processes import ProcessGroup
    from spanreplay.runtime.run import Run

_PART: Final = "session"
"""Member of a process's part that holds its findings."""


class ReplayResolver:
    """Asks a session for each call of one run; see `Resolver`."""

    may_amend = True
    swallows_telemetry = True
    connects = False
    keeps = False

    def __init__(self, answers: Answers, run: Run) -> None:
        self.answers = answers
        self._run = run
        self._is_imported = answers.recording.is_imported

    @property
    def variables(self) -> RecordedEnvironment:
        """The recorded variables."""
        return self.answers.recorded_env

    @property
    def environment(self) -> Mapping[str, Any]:
        """The recorded run's environment."""
        return self.answers.recording.root.env

    # ── the recording ───────────────────────────────────────────────────────────────────────────────
    def has(self, name: str) -> bool:
        """Whether the recorded environment has the member."""
        return bool(self.environment.get(name))

    def declare(self, name: str, value: Any = True) -> None:
        """Repeat what the recording states, if the run continues it as a new recording."""
        if self._run.continuation is not None and self.has(name):
            self._run.environment = {**self._run.environment, name: self.environment[name]}

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call it at the end of the replay."""
        self.answers.on_end.append(callback)

    def insist(self) -> None:
        """Raises: ReplayMiss if the replay has ended at the end of the recording."""
        if self.answers.has_reached_frontier and self.answers.is_stopped:
            raise ReplayMiss("the replay has ended before this")

    def join(self, shared: ProcessGroup) -> None:
        """Collect findings anew."""
        self.answers.parts.join(shared, is_worker=shared.is_worker)

    def to_part(self) -> dict[str, Any]:
        """This process's findings."""
        return {_PART: self.answers.parts.to_part()}

    def add_parts(self, parts: Mapping[int, Mapping[str, Any]]) -> bool:
        """Add the findings of the other processes."""
        for number in sorted(parts):
            self.answers.parts.add_part(parts[number][_PART])
        return True

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────
    def admits_call(self, *, is_http: bool) -> bool:
        """True: a call that is let through would go live.

        A recording made of a cassette has only HTTP calls: the code of all others runs, within the sandbox and without
        the network, so that the requests that it makes are served.
        """
        return is_http or not self._is_imported

    def resolve(self, crossing: Any) -> None:
        """Find the recorded answer. Raises: ReplayMiss."""
        sent = self.answers.gate.sent
        sent.send_late()
        self.answers.resolve(crossing)
        sent.begin(crossing.served or crossing.paired)

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
        """Raises: ReplayMiss, unless the recording has only HTTP calls anyway."""
        if not self._is_imported:
            raise self.answers.at_hole(miss or hole)

    def broken(self, message: str) -> ReplayMiss:
        """The error, which is noted for the verdict."""
        return self.answers.broken(message)

    def overrun(self, crossing: Any) -> ReplayMiss:
        """The error, which is a divergence."""
        return self.answers.overrun(crossing)
