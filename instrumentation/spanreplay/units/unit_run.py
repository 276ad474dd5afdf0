"""The run of one unit: a run that goes on from the start of its process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spanreplay.model import guard
from spanreplay.model.call import Outcome
from spanreplay.recording.catalog import FORKED_FROM
from spanreplay.recording.sampling.own_cpu import measured
from spanreplay.runtime.lanes import Lane
from spanreplay.runtime.process.environment import LoadedCode
from spanreplay.runtime.run import Run
from spanreplay.units.stated import LANE, PROCESS, UNIT, Start

if TYPE_CHECKING:
    from spanreplay.runtime.contributors import OpenCall
    from spanreplay.runtime.processes import Family
    from spanreplay.units.sampled import Sampled

__all__ = ["OffRun", "UnitRun", "look_at_code"]


class _Code:
    loaded = LoadedCode()
    process: str | None = None
    """Whose it is; None where the first that asks takes it over, as in a process that was just forked."""


def _forked() -> None:
    _Code.process = None


os.register_at_fork(after_in_child=_forked)


def look_at_code(process: str) -> dict[str, str]:
    """The agent's files that are loaded in a process, by the id of its run."""
    if _Code.process not in (None, process):
        _Code.loaded = LoadedCode()
    _Code.process = process
    return _Code.loaded.look()


class UnitRun(Run):
    """The run of one unit of a process that serves many. Thread-safe."""

    def __init__(self, start: Start, clock: int, before: int, **fields: Any) -> None:
        """`clock`: the value that the Lamport clock goes on from; `before`: how many units were begun before."""
        super().__init__(**fields)
        self.root_lane = Lane(LANE)
        self.is_entered = True
        self._start = start
        self._seq = clock
        self._outcome: Outcome | None = None
        self._held = 0
        self.has_cancelled_call = False
        """Whether a call was given up, as when a person interrupts what waits for it."""
        self.on_end: Callable[[UnitRun], object] | None = None
        """Called once, when the run has ended."""
        self.sampled: Sampled | None = None
        """Whether it is kept; None where all units are."""
        of_process = {name: value for name, value in self.environment.items() if name != FORKED_FROM}
        self.environment = {**of_process, UNIT: start.to_environment(before)}
        for reason in start.holes:
            self.hole(reason)

    def end(self, outcome: Outcome) -> None:
        """The unit has given its output; calls that its tasks have under way still belong to it."""
        self._outcome = outcome
        if not self._is_waiting():
            self.finish(outcome)

    def note_failure(self) -> None:
        """The unit has failed, whatever its outcome says."""
        if self.sampled is not None:
            self.sampled.has_failed = True

    def share(self) -> Family:
        """As of every run; what other processes write of it is there at once."""
        if self.sampled is not None:
            self.sampled.spread()
        return super().share()

    def hold(self) -> None:
        """Work of the unit goes on in another thread, whatever has been given until then; `release` says its end."""
        with self._lock:
            self._held += 1

    def release(self) -> None:
        """Such work is over."""
        with self._lock:
            self._held -= 1
        self._end_if_over()

    def _is_waiting(self) -> bool:
        """Whether calls are under way, or work; a stream that was left in part ends where it was left."""
        return self._held > 0 or self.has_calls_under_way()

    def closed(self, crossing: OpenCall, outcome: Outcome) -> None:
        """A call has ended; with the last one the run does, if the unit has."""
        super().closed(crossing, outcome)
        self.has_cancelled_call = self.has_cancelled_call or outcome is Outcome.CANCELLED
        if self.sampled is not None and outcome is Outcome.ERROR:
            self.sampled.has_failed_call = True
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._outcome is not None and not self.is_ended and not self._is_waiting():
            guard.guarded("the end of a unit", self.finish, self._outcome)

    @measured
    def finish(self, outcome: Outcome = Outcome.OK, exit_status: int | None = None) -> None:
        """End the run, whatever is under way; idempotent."""
        was_ended = self.is_ended
        if self.sampled is not None and not was_ended:
            if outcome is Outcome.ERROR:
                self.note_failure()
            guard.guarded("sampling", self.sampled.decide)
        super().finish(outcome, exit_status)
        on_end, self.on_end = self.on_end, None
        if on_end is not None and not was_ended:
            on_end(self)

    def _find_code(self) -> dict[str, str]:
        return look_at_code(self._start.process)

    def _manifest(self, exit_status: int | None) -> dict[str, Any]:
        if self.sampled is None:
            return {**super()._manifest(exit_status), PROCESS: self._start.process}
        if self.sampled.is_left_out:
            return {}
        return {**super()._manifest(exit_status), PROCESS: self._start.process, **self.sampled.for_manifest()}


class OffRun(UnitRun):
    """Stands for a unit that is not recorded: what belongs to it has no run, not even that of the process."""

    is_off = True

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.is_ended = True
