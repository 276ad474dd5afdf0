"""The run of one unit, which continues from the start of its process."""

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
    from spanreplay.runtime.processes import ProcessGroup
    from spanreplay.units.sampled import Sampled

__all__ = ["OffRun", "UnitRun", "look_at_code"]


class _Code:
    loaded = LoadedCode()
    process: str | None = None
    """Run id of the owning process; None if the next caller takes it over, as after a fork."""


def _forked() -> None:
    _Code.process = None


os.register_at_fork(after_in_child=_forked)


def look_at_code(process: str) -> dict[str, str]:
    """Return the agent's code files loaded in the process with this run id."""
    if _Code.process not in (None, process):
        _Code.loaded = LoadedCode()
    _Code.process = process
    return _Code.loaded.look()


class UnitRun(Run):
    """The run of one unit in a process that serves many. Thread-safe."""

    def __init__(self, start: Start, clock: int, before: int, **fields: Any) -> None:
        """`clock`: the tick that the Lamport clock continues from; `before`: how many units began before."""
        super().__init__(**fields)
        self.clock.now = clock
        self.root_lane = Lane(LANE, clock=self.clock)
        self.is_entered = True
        self._start = start
        self._outcome: Outcome | None = None
        self._held = 0
        self.has_cancelled_call = False
        """Whether a call was cancelled, as when a person interrupts the code waiting for it."""
        self.on_end: Callable[[UnitRun], object] | None = None
        """Callback, called once when the run has ended."""
        self.sampled: Sampled | None = None
        """The sampling decision; None if all units are kept."""
        of_process = {name: value for name, value in self.environment.items() if name != FORKED_FROM}
        self.environment = {**of_process, UNIT: start.to_environment(before)}
        for reason in start.holes:
            self.hole(reason)

    def end(self, outcome: Outcome) -> None:
        """End the unit after its output; calls that its tasks still have open belong to it, and delay the end."""
        self._outcome = outcome
        if not self._is_waiting():
            self.finish(outcome)

    def note_failure(self) -> None:
        """Mark the unit as failed for sampling, regardless of its outcome."""
        if self.sampled is not None:
            self.sampled.has_failed = True

    def share(self) -> ProcessGroup:
        """Share the run with other processes; a sampled unit is kept from now on, because they write directly."""
        if self.sampled is not None:
            self.sampled.spread()
        return super().share()

    def hold(self) -> None:
        """Keep the run open for work in another thread, even after the unit's output, until `release`."""
        with self._lock:
            self._held += 1

    def release(self) -> None:
        """End work announced with `hold`."""
        with self._lock:
            self._held -= 1
        self._end_if_over()

    def _is_waiting(self) -> bool:
        """Whether calls or held work are open. A partly read stream ends where its reader stopped."""
        return self._held > 0 or self.has_calls_under_way()

    def closed(self, crossing: OpenCall, outcome: Outcome) -> None:
        """Note that a call has ended; the last one also ends the run, if the unit is over."""
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
        """End the run even if calls are open; idempotent."""
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
    """Placeholder for a unit that is not recorded: its calls go into no run, not even the process's."""

    is_off = True

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.is_ended = True
