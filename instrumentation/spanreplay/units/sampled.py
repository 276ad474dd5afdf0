"""Decides whether to keep a unit: as soon as a rule is certain to keep it, at the latest at its end.

Until then its recording is held in memory, so that it is written completely or not at all.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.model.attributes import UNIT_TRACE
from spanreplay.model.own_threads import make_lock
from spanreplay.recording.sampling.held import HeldWriter
from spanreplay.recording.sampling.rules import Facts
from spanreplay.recording.sampling.tally import KEPT_FOR, RULES, Tally
from spanreplay.units.stated import UNIT

if TYPE_CHECKING:
    from pathlib import Path

    from spanreplay.runtime.run import Run

__all__ = ["MEMBER", "Sampled", "settle"]

MEMBER: Final = "sampled"
"""Manifest member of a kept unit under sampling: the rules, and the ones that kept it."""
_SIZE, _PROCESSES = "size", "processes"
"""Reasons other than rules: the unit takes too much memory, or works in several processes that write by themselves."""


class Sampled:
    """The decision about one unit. As thread-safe as its writer."""

    def __init__(self, run: Run, tally: Tally, writer: HeldWriter) -> None:
        self._run = run
        self._tally = tally
        self._writer = writer
        self._begun_ns = monotonic_ns()
        self._has_processes = False
        self._reasons: tuple[str, ...] = ()
        self._is_decided = False
        self._lock = make_lock()
        writer.is_kept = lambda: bool(guard.guarded("sampling", self._find_reasons))
        self.has_failed = False
        self.has_failed_call = False

    def _find_reasons(self, *, is_over: bool = False) -> tuple[str, ...]:
        """Return the reasons known so far for keeping the unit."""
        facts = Facts(
            elapsed_ns=monotonic_ns() - self._begun_ns,
            has_failed=self.has_failed,
            has_failed_call=self.has_failed_call,
            user=self._run.who.user,
            trace_id=_find_trace(self._run, is_over=is_over),
        )
        forced = ((_SIZE, self._writer.is_too_large), (_PROCESSES, self._has_processes))
        return (*self._tally.rules.find_reasons(facts), *(name for name, is_so in forced if is_so))

    def spread(self) -> None:
        """Keep the unit: it is about to work in several processes, so its recording can't be withdrawn."""
        self._has_processes = True
        self._writer.keep()

    def decide(self) -> None:
        """Keep or drop the unit at its end, before its root record is written. Idempotent."""
        with self._lock:
            if self._is_decided:
                return
            reasons = self._find_reasons(is_over=True)
            if not reasons and not self._writer.leave_out():
                reasons = (_SIZE,)  # it has grown too large since the reasons were determined
            self._reasons, self._is_decided = reasons, True
        if reasons:
            self._writer.keep()
        self._tally.count(reasons)

    @property
    def is_left_out(self) -> bool:
        """Whether the unit was dropped."""
        return self._is_decided and not self._reasons

    def for_manifest(self) -> dict[str, Any]:
        """Return the unit's manifest member."""
        return {MEMBER: {RULES: self._tally.rules.text, KEPT_FOR: list(self._reasons)}}


def _find_trace(run: Run, *, is_over: bool) -> int | None:
    """Return the trace shared across services: the caller's, else the first that the unit begins, else its own."""
    stated = run.environment[UNIT].get(UNIT_TRACE)
    if stated:
        return int(stated, 16)
    if not is_over:  # the program's instrumentation may still begin a trace and propagate it
        return None
    begun = 0 if run.others is None else run.others.first_trace
    return begun or run.span_context.trace_id


def settle(tally: Tally, data_dir: Path, run: Run, forked_from: str) -> None:
    """At the end of a process, pass on its unit counts and those of its child processes to the run that is written."""
    if run.is_member:
        guard.guarded("the count of units", tally.hand_on, data_dir, run.run_id)
        return
    guard.guarded("the count of units", tally.take_over, data_dir, run.run_id)
    if forked_from and not run.has_calls:
        guard.guarded("the count of units", tally.hand_on, data_dir, forked_from)
