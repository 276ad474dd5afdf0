"""Replays units that came before the judged one, to restore the state that they left behind.

Differences in them are not divergences of the judged unit: they are kept separately, as the reason why a unit was not
fully replayed. As when recorded, each unit begins with what the redactor knew at the end of the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.lane_names import UNIT_LANE, is_within
from spanreplay.model.own_threads import make_lock
from spanreplay.replayer.compare.findings import Findings
from spanreplay.replayer.compare.unexercised import Unexercised

if TYPE_CHECKING:
    from spanreplay.redact.engine import Learned
    from spanreplay.replayer.resolve.shared_state import SharedState
    from spanreplay.runtime.run import Run

__all__ = ["EarlierUnit", "WarmUp"]

_NOT_GIVEN: Final = "the program did not begin it"
_FLAGS: Final = ("is_stopped", "has_reached_frontier")


@dataclass
class EarlierUnit:
    """A unit that is replayed before the judged one, in its own root lane."""

    run_id: str
    lane: str
    clock: int
    """All clocks of its calls are above this one."""
    reason: str = ""
    """Why its recording is incomplete."""
    why: str = _NOT_GIVEN
    """Why it was not fully replayed; empty if it was."""
    has_begun: bool = False
    is_left_out: bool = False
    """Whether it is not replayed, because it would wait for something that happened only after the judged unit."""


class WarmUp:
    """Replays earlier units; used by the code that passes units to the program."""

    def __init__(self, session: SharedState, units: Sequence[EarlierUnit], clock: int, before: int) -> None:
        """`clock`: all clocks of the judged unit are above it; `before`: how many units came before the judged one."""
        self.units = tuple(units)
        self.seen = 0
        """How many units the program has reached in this replay."""
        self.before = before
        self.on_enter: Callable[[str], None] | None = None
        """Called with the root lane of each unit that begins."""
        self._session = session
        self._clock = clock
        self._own: tuple[Findings, Unexercised, dict[str, int], list[str]] | None = None
        self._learned: Learned | None = None
        self._lock = make_lock()

    def follow(self, session: SharedState) -> None:
        """Switch to another session, which has taken over this recording."""
        self._session = session

    def iter_left(self) -> Iterator[EarlierUnit]:
        """Yield the units that have not begun, in order; none once the replay has ended."""
        for unit in self.units:
            if not (unit.has_begun or self._session.stopped or self._session.internal_error):
                yield unit

    def is_before_judged(self) -> bool:
        """Count a unit that the program has reached; return whether an earlier unit is to be replayed now."""
        with self._lock:
            self.seen += 1
            return self.seen <= self.before and any(True for _ in self.iter_left())

    def claim(self, unit: EarlierUnit) -> bool:
        """Whether the caller is the one to replay a unit."""
        with self._lock:
            is_first, unit.has_begun = not unit.has_begun, True
            return is_first

    def begin(self, unit: EarlierUnit, run: Run) -> None:
        """Begin a claimed unit; the start is over."""
        with self._lock:
            session = self._session
            if self._own is None:
                self._own = (
                    session.findings,
                    session.unexercised,
                    dict(session.counts),
                    list(session.sockets_denied),
                )
            findings = Findings(session.recording, session.index)
            findings.on_first = self._own[0].on_first
            session.findings, session.unexercised = findings, Unexercised()
            unit.why = unit.reason
            self._enter(unit.lane, unit.clock, run)

    def end(self, unit: EarlierUnit, run: Run) -> None:
        """End the unit and keep the reason if it was not fully replayed."""
        with self._lock:
            session = self._session
            found = [d for d in session.findings.divergences if not d.lane or is_within(d.lane, unit.lane)]
            missing = session.index.find_left(unit.lane)
            if found:
                unit.why = unit.why or f"{found[0].kind} at {found[0].boundary}"
            elif missing is not None:
                unit.why = unit.why or f"missing_call at {missing.boundary}"
            self._go_back(run)

    def begin_judged(self, run: Run) -> None:
        """Switch to the judged unit, or to the end of the replay; idempotent."""
        with self._lock:
            if self._own is None:
                return
            findings, unexercised, counts, denied = self._own
            self._own = None
            session = self._session
            session.findings, session.unexercised = findings, unexercised
            session.counts.update(counts)
            session.sockets_denied[:] = denied
            self._enter(UNIT_LANE, self._clock, run)

    def _enter(self, lane: str, clock: int, run: Run) -> None:
        session = self._session
        if self.on_enter is not None:
            self.on_enter(lane)
        if not (session.stopped or session.internal_error):
            for name in _FLAGS:
                setattr(session, name, False)
            session.gate.restart(clock + 1)
        self._go_back(run)

    def _go_back(self, run: Run) -> None:
        if self._learned is None:
            self._learned = run.redactor.remember()
        run.redactor.go_back(self._learned)

    def describe(self) -> dict[str, Any]:
        """Return the warm-up member of a verdict."""
        units = [{"run_id": unit.run_id, "why": unit.why} for unit in self.units]
        return {"before": self.before, "replayed": sum(unit.has_begun for unit in self.units), "units": units}
