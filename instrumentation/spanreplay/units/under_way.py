"""Records one unit: open, enter, note input and output, end. Errors of the recorder are counted, not raised."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final

from spanreplay.model import guard
from spanreplay.model.call import Outcome
from spanreplay.units import factory
from spanreplay.units.unit_run import UnitRun

__all__ = ["UnderWay", "open_under_way"]

_PART: Final = "a unit"


class UnderWay:
    """One open unit of this process; calls in its block belong to its run."""

    def __init__(self, run: UnitRun) -> None:
        self.run = run
        self.outcome: Outcome | None = None
        """How the unit ended, if no exception determines it."""
        self._inside = factory.inside_unit(run)

    def __enter__(self) -> UnderWay:
        self._inside.__enter__()
        return self

    def note(self, make_call: Callable[[], object]) -> None:
        """Record one of the unit's own calls: its input or output."""
        guard.guarded(_PART, make_call)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._inside.__exit__(kind, exc, traceback)
        if kind is not None:
            self.run.note_failure()
            self.outcome = Outcome.ERROR if issubclass(kind, Exception) else Outcome.CANCELLED
        guard.guarded(_PART, self.run.end, self.outcome or Outcome.OK)


def open_under_way(name: str = "", user: str = "", session: str = "") -> UnderWay | None:
    """Open a unit; None if recording is off, or inside another unit."""
    run = guard.guarded(_PART, factory.open_unit, name, user, session)
    return None if run is None else UnderWay(run)
