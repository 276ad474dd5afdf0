"""A replay in progress: resolves each call against the recording and collects the differences.

Calls are resolved in this order; a call never goes live implicitly:
  (1) plan says live            → live, paired with the recorded call for comparison
  (2) same slot, equal key      → serve (exact), or run the code again, as the plan says
  (3) same provider call id and key → serve (exact)
  (4) equal key elsewhere       → serve, `moved`; if several are equally near, with different answers: `ambiguous`
  (5) same slot, other key      → `changed_call`, `type_changed`, `unserializable`; stop, serve by position, or live
  (6) equal request, other name → `boundary_renamed`; stop, or serve
  (7) nothing                   → `extra_call`; stop
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from spanreplay.model.call import ALONE, CallRecord, Outcome, Recording
from spanreplay.model.errors import ConfigError, ReplayMiss
from spanreplay.model.lane_names import is_earlier, name_call, name_number
from spanreplay.model.own_threads import make_lock
from spanreplay.recording.seal.check import find_tampering
from spanreplay.replayer.compare import beside
from spanreplay.replayer.compare.findings import DIVERGENCES_MAX, Findings, place
from spanreplay.replayer.compare.kinds import find_unserializable
from spanreplay.replayer.compare.swaps import has_any_workers
from spanreplay.replayer.compare.unexercised import Unexercised
from spanreplay.replayer.divergence import Diff, Divergence, describe_stall, diff_json
from spanreplay.replayer.index import Moved, RecordingIndex, is_open_ended
from spanreplay.replayer.relocation import Relocation
from spanreplay.replayer.resolve.budget import CostMeter, is_paid
from spanreplay.replayer.resolve.continuation import Continuation
from spanreplay.replayer.resolve.directions import Direction, Directions
from spanreplay.replayer.resolve.ended_workers import EndedWorkers
from spanreplay.replayer.resolve.hidden import Hidden
from spanreplay.replayer.resolve.plan import LIVE, SERVE, Plan
from spanreplay.replayer.resolve.processes import Parts
from spanreplay.replayer.resolve.recorded_env import RecordedEnv
from spanreplay.replayer.resolve.repeats import Repeats
from spanreplay.replayer.resolve.replay_resolver import ReplayResolver
from spanreplay.replayer.resolve.rerun import pair, runs_again
from spanreplay.replayer.resolve.sent_tokens import SentTokens
from spanreplay.replayer.resolve.streams import count_parts
from spanreplay.replayer.restated import find_restated
from spanreplay.replayer.schedule.kept_order import KeptOrder
from spanreplay.replayer.schedule.lock_order import RecordedLockOrder
from spanreplay.replayer.schedule.recorded_gate import read_gate
from spanreplay.runtime.calls.bodies import BODY
from spanreplay.runtime.calls.turns import begin
from spanreplay.runtime.edits.apply_patch import patch_response
from spanreplay.runtime.order.lock_order import read_lock_order
from spanreplay.runtime.processes import is_of_process

if TYPE_CHECKING:
    from spanreplay.replayer.resolve.extent import Extent
    from spanreplay.replayer.resolve.guard import Guard
    from spanreplay.replayer.resolve.stepper import Stepper
    from spanreplay.runtime.calls.open_call import Crossing
    from spanreplay.runtime.run import Run

_OPEN = Outcome.OPEN.value  # a constant, because `.value` of an enum member is a Python call
_COUNTED = ("served", "exact", "moved", "live", "changed", "extra", "ignored_diffs")


class Session:
    """State of one replay; thread-safe."""

    def __init__(self, recording: Recording, plan: Plan, folders: Mapping[str, str] | None = None) -> None:
        """`folders`: where the agent's folders are now; see `runtime.process.environment.find_folders`."""
        self.recording = recording
        self.plan = plan
        self.completeness = recording.completeness()
        self.tampering = find_tampering(recording)
        self.index = RecordingIndex(recording)
        self.relocation = Relocation.of(recording.root.env, folders or {})
        self.directions = Directions(plan, recording)
        self._stepper: Stepper | None = None
        self.continuation = None if plan.resume is None else Continuation(recording, plan.resume)
        self.meter = None if plan.budget is None else CostMeter(plan.budget)
        self.findings = Findings(recording, self.index)
        self.counts: dict[str, int] = dict.fromkeys(_COUNTED, 0)
        self.unexercised, self.hidden = Unexercised(), Hidden(recording)
        self.recorded_env = RecordedEnv(recording, is_wanted=plan.takes_environment and plan.resume is None)
        self.sent_tokens = SentTokens(is_allowed=plan.allows_tokens)
        self.resolved = self.live_tokens = 0
        self.sockets_denied: list[str] = []
        self.has_reached_frontier = self.is_stopped = self.is_forked = self._has_broken = False
        self.extent: Extent | None = None  # of a unit
        self.guard: Guard | None = None
        """Whether the kernel guards the files; None if the replay is only a part of its process."""
        self.internal_error = self.stopped = self.hole = ""
        """The first internal error; and why the replay ended before its recording, if the user ended it."""
        self.gate = read_gate(recording, self.index.covered)
        self.gate.on_stall = self.stall_for_ever
        self.ended_workers, self._repeats = EndedWorkers(recording, self.index), Repeats(recording)
        self._streams: dict[int, tuple[Crossing, int]] = {}
        self.on_end: list[Callable[[], None]] = []
        self.parts = Parts(self)
        self._lock = make_lock()  # a debugger may make calls where it has stopped

    @property
    def divergences(self) -> list[Divergence]:
        """The differences so far; calls that were not made appear only in the verdict."""
        return self.findings.divergences

    def equip(self, run: Run) -> tuple[RecordedLockOrder, KeptOrder, ReplayResolver]:
        """The recorded order of threads where they meet and go on, and the answers of calls."""
        lock_order = RecordedLockOrder(self.gate, read_lock_order(self.recording.root.manifest))
        return lock_order, KeptOrder(run, self.gate, lock_order), ReplayResolver(self, run)

    def resolve(self, crossing: Crossing) -> None:
        """Set `crossing.served` or leave it live. Raises: ReplayMiss."""
        if self.is_forked or (self.is_stopped and self.stopped):
            raise ReplayMiss(self.stopped or f"a forked process can't be replayed: {place(crossing)}")
        if self.extent is not None and self.extent.takes(crossing):
            return
        self.ended_workers.look(crossing, self.gate)
        try:
            with self._lock:
                self._resolve(crossing)
        except ReplayMiss:
            self.gate.open()
            raise

    def _resolve(self, crossing: Crossing) -> None:
        index, key, lane = self.index, crossing.key_hex, crossing.lane.path
        slot = (lane, crossing.boundary, crossing.index)
        self.findings.taint.saw(lane, crossing.seq)
        exact = index.find_exact(slot, key, crossing.spec.call_id)
        if exact is None:
            exact = find_restated(self, crossing, slot)
            key = crossing.key_hex
        moved = None if exact is not None else index.find_moved(slot, key)
        found = exact or (index.find_in_slot(slot) if moved is None else moved.call)
        self.resolved += 1
        crossing.number = self.resolved + len(index.covered) if found is None else found.number
        direction = self.directions.decide(crossing, found)
        self._pause(crossing, found)
        cause = self._amend(crossing, direction)
        if direction.action == LIVE:
            self._go_live(crossing, found, is_equal=not cause and (exact or moved) is not None, cause=cause)
        elif cause and found is not None:
            self._change(crossing, found, direction, cause)
        elif exact is not None:
            self.findings.note_made(crossing, exact)
            self._serve(crossing, exact, direction)
            self.counts["exact"] += crossing.served is not None
        elif moved is not None:
            self._move(crossing, moved, direction)
        elif found is not None:
            self._change(crossing, found, direction)
        elif (again := self._repeats.find(crossing.lane.path, crossing.boundary, key)) is not None:
            self._serve(crossing, again, direction)
        else:
            self._find_renamed(crossing, direction)

    def _pause(self, crossing: Crossing, call: CallRecord | None) -> None:
        """Ask the user, enter a debugger, or end the replay, as the plan says. Raises: ReplayMiss."""
        plan = self.plan
        if not (plan.stop_at or plan.is_stepped) or is_earlier(crossing.lane.path):
            return
        is_reached = bool(plan.stop_at) and call is not None and call.number >= plan.stop_at
        if is_reached and call is not None and not plan.is_break:
            raise self.stop(f"stopped before {name_number(call.number)} ({call.boundary}), as asked")
        from spanreplay.replayer.resolve.stepper import Stepper, break_before_call

        if plan.is_stepped:
            self._stepper = self._stepper or Stepper()
            why = self._stepper.ask(crossing, call)
            if why:
                raise self.stop(why)
        if is_reached and not self._has_broken:
            self._has_broken = True
            break_before_call(is_attached=bool(plan.dap))

    def stop(self, why: str) -> ReplayMiss:
        """End the replay here, as the user asked."""
        with self._lock:
            self.stopped = self.stopped or why
            self.has_reached_frontier = self.is_stopped = True
        return ReplayMiss(why)

    def _amend(self, crossing: Crossing, direction: Direction) -> str:
        """Change the request as the plan says; return which patch changed it, '' if none did."""
        if not direction.requests:
            return ""
        try:
            is_changed = crossing.amend(direction.requests)
        except ConfigError as exc:
            raise self.broken(str(exc)) from exc
        return f"set by the plan: {direction.requests[0].text}" if is_changed else ""

    def _serve(self, crossing: Crossing, call: CallRecord, direction: Direction) -> None:
        self.index.take(call)
        if call.outcome == _OPEN:
            if self.continuation is not None:
                self._go_on(crossing, call, self.continuation)
                return
            self.has_reached_frontier = self.is_stopped = True
            raise ReplayMiss(f"the recording ends inside this call: {place(crossing)}")
        if beside.is_other(crossing, call):
            beside.compare(self, crossing, call, is_stopping=direction.on_change != SERVE)
        if runs_again(self, crossing, call, direction):
            return
        covered = self.index.descendants(call.seq)
        self.counts["served"] += 1
        crossing.served, crossing.paired = self.hidden.reveal(crossing, call), call
        if covered or BODY in call.meta:
            self.unexercised.note(crossing, call, covered)
        if self.continuation is not None:
            crossing.run.renumber(crossing, call.seq)
        if direction.responses:
            self._override(crossing, call, direction)
        if covered:
            self.index.covered.update(c.seq for c in covered)
            self.gate.cover(covered)  # calls inside this one no longer complete by themselves
        begin(self.gate, call.seq)

    def _override(self, crossing: Crossing, call: CallRecord, direction: Direction) -> None:
        """Serve the plan's response instead; if it differs from the recorded one, note it as a divergence."""
        try:
            response, outcome = patch_response((crossing.served or call).response, call.outcome, direction.responses)
        except ConfigError as exc:
            raise self.broken(str(exc)) from exc
        self.counts["overridden"] = self.counts.get("overridden", 0) + 1
        crossing.served = replace(call, response=response, outcome=outcome)
        cause = f"set by the plan: {direction.responses[0].text}"
        self.findings.note_output(crossing, call, outcome, crossing.run.redactor.json_text(response), cause)

    def _go_live(self, crossing: Crossing, call: CallRecord | None, *, is_equal: bool, cause: str = "") -> None:
        self._admit(crossing)
        self.counts["live"] += 1
        crossing.is_live_by_plan = True
        if call is None:
            if not is_open_ended(self.recording):
                self.findings.note_call(crossing, "extra_call", None, "the recording has no such call")
            self.counts["extra"] += 1
            return
        self.index.take(call)
        pair(self, crossing, call)
        if not is_equal:
            self.counts["changed"] += 1
            self.findings.note_call(crossing, "changed_call", call, cause=cause)

    def _admit(self, crossing: Crossing) -> None:
        """Let a live call begin. Raises: ReplayMiss for a token, above the ceiling, or if its price is unknown."""
        why = self.sent_tokens.check(crossing)
        if why:
            raise self.broken(why)
        spec = crossing.spec
        if self.meter is None or not is_paid(spec.kind):
            return
        try:
            is_admitted = self.meter.admit(crossing.seq, spec.meta, spec.request)
        except ConfigError as exc:
            raise self.broken(f"{exc}; {exc.hint}") from exc
        if not is_admitted:
            raise self.stop(
                f"the budget of ${self.meter.budget.max_cost_usd:g} is used up: {place(crossing)} was not made"
            )

    def _move(self, crossing: Crossing, moved: Moved, direction: Direction) -> None:
        call, rival = moved.call, moved.rival
        if has_any_workers(self.recording) and is_of_process(call.lane) and is_of_process(crossing.lane.path):
            self._extra(crossing)  # it may be a call that was lost
            return
        detail = f"it was {name_call(call.number, call.lane)}"
        if rival is not None:
            claims = f"{name_call(call.number, call.lane)} and {name_call(rival.number, rival.lane)}"
            detail = f"{claims} fit equally, and gave different answers"
        is_guess = rival is not None and direction.on_change != SERVE
        if is_guess or self.plan.is_strict:
            miss = self._stopped(crossing, "moved" if rival is None else "ambiguous", call, detail)
            if rival is None:
                self.index.take(call)
            raise miss
        self.findings.note_move(crossing, call, detail, is_ambiguous=rival is not None)
        self._serve(crossing, call, direction)
        self.counts["moved"] += 1

    def _change(self, crossing: Crossing, call: CallRecord, direction: Direction, cause: str = "") -> None:
        if direction.on_change == LIVE:
            self._admit(crossing)
        self.counts["changed"] += 1
        if direction.on_change == SERVE:
            self.findings.note_call(crossing, "changed_call", call, cause=cause)
            self._serve(crossing, call, direction)
        elif direction.on_change == LIVE:
            self.findings.note_call(crossing, "changed_call", call, cause=cause)
            self.index.take(call)
            crossing.paired = call
            self.counts["live"] += 1
            crossing.is_live_by_plan = True
        else:
            miss = self._stopped(crossing, "changed_call", call, cause=cause)
            self.index.take(call)
            raise miss

    def _find_renamed(self, crossing: Crossing, direction: Direction) -> None:
        call = self.index.find_renamed((crossing.lane.path, crossing.boundary, crossing.index), crossing.spec.request)
        if call is None:
            self._extra(crossing)
            return
        self.counts["changed"] += 1
        crossing.number = call.number
        detail = f"the same request was recorded as {call.boundary}, {name_number(call.number)}"
        if direction.on_change != SERVE:
            miss = self._stopped(crossing, "boundary_renamed", call, detail)
            self.index.take(call)
            raise miss
        self.findings.note_call(crossing, "boundary_renamed", call, detail)
        self._serve(crossing, call, direction)

    @property
    def has_gone_on(self) -> bool:
        """Whether the run has continued live, past the end of its recording."""
        return self.continuation is not None and self.continuation.has_gone_on

    def _go_on(self, crossing: Crossing, call: CallRecord | None, continuation: Continuation) -> None:
        """Make the first call beyond the recording, and let those after it run live. Raises: ReplayMiss."""
        missing = continuation.find_missing(crossing, self.index, self.index.covered)
        why = self.tampering or continuation.refuses(crossing, call)
        if missing is not None:
            detail = f"{name_number(missing.number)} ({missing.boundary}) comes before it"
            why = self.findings.note_call(crossing, "missing_call", missing, detail).message
        if why:
            self.stopped = "" if missing is not None else why
            self.is_stopped = True
            raise ReplayMiss(why)
        if self.meter is not None:
            self._admit(crossing)
        continuation.begin(crossing, call)
        self.has_reached_frontier = True
        self.counts["live"] += 1
        crossing.is_live_by_plan = True
        self.gate.go_live()

    def _extra(self, crossing: Crossing) -> None:
        continuation = self.continuation
        if continuation is not None and continuation.is_beyond(crossing.lane.path, self.index, self.index.covered):
            self._go_on(crossing, None, continuation)
            return
        is_lost = has_any_workers(self.recording) and is_of_process(crossing.lane.path)
        if (is_lost or is_open_ended(self.recording)) and not self.divergences:
            self.has_reached_frontier = self.is_stopped = True
            raise ReplayMiss(f"the recording ends before this call: {place(crossing)}")
        if self.extent is not None and self.extent.serve_stray(crossing):
            return
        self.counts["extra"] += 1
        kind = "unserializable" if find_unserializable(crossing.spec.request) else "extra_call"
        raise self._stopped(crossing, kind, None, "the recording has no such call")

    def _stopped(
        self,
        crossing: Crossing,
        kind: str,
        call: CallRecord | None,
        detail: str = "",
        diff: tuple[Diff, ...] = (),
        cause: str = "",
    ) -> ReplayMiss:
        """Note a divergence beyond which the replay doesn't continue."""
        self.is_stopped = True
        return ReplayMiss(self.findings.note_call(crossing, kind, call, detail, diff, cause).message)

    def settle_live(self, crossing: Crossing, outcome: Outcome, response: str) -> None:
        """Compare the output of a live call with the recorded one."""
        if crossing.paired is not None:
            self.gate.complete(*crossing.paired.clocks, crossing.paired.end_seq)
        with self._lock:
            spec = crossing.spec
            tokens = (spec.meta.get(k, 0) for k in ("tokens_in", "tokens_out"))
            self.live_tokens += sum(t for t in tokens if isinstance(t, int))
            if self.meter is not None:
                self.meter.settle(crossing.seq, spec.meta, spec.request, response)
            call = crossing.paired
            if outcome is Outcome.OPEN:
                return
            if call is None:
                self.findings.keep_output(crossing, "", response)
            else:
                self.findings.note_output(crossing, call, outcome.value, response)

    def check_sent(self, crossing: Crossing, path: str, recorded: object, now: object) -> None:
        """Note that a generator was sent a different value. Raises: ReplayMiss unless the plan serves changes."""
        with self._lock:
            self.counts["changed"] += 1
            diff = (Diff(path, recorded, now),)
            if self.directions.decide(crossing, crossing.paired).on_change == "stop":
                raise self._stopped(crossing, "changed_call", crossing.paired, diff=diff)
            self.findings.note_call(crossing, "changed_call", crossing.paired, diff=diff)

    def add_divergence(self, divergence: Divergence) -> None:
        """Note a difference found outside a call."""
        with self._lock:
            self.findings.add_outside(divergence)

    def read_part(self, crossing: Crossing, number: int) -> None:
        """Count the parts of a served stream that the agent has read."""
        with self._lock:
            if crossing.served is not None and crossing.served.end_seq >= 0:  # not for calls outside the unit
                self._streams[crossing.seq] = (crossing, number)

    def overrun(self, crossing: Crossing) -> ReplayMiss:
        """Note that more of a stream was read than when recorded."""
        with self._lock:
            return self._stopped(crossing, "stream_overrun", crossing.paired, "more was read than was recorded")

    def settle_streams(self) -> None:
        """Note the streams of which less was read than recorded; call once, after the agent has ended."""
        with self._lock:
            streams, self._streams = self._streams, {}
            if self.is_stopped or self.has_reached_frontier or self.recording.is_imported:  # all of a body is recorded
                return
            for settle in self.on_end:
                settle()
            for _, (crossing, read) in sorted(streams.items()):
                call = crossing.served
                parts = 0 if call is None else count_parts(call)
                if read < parts and not is_earlier(crossing.lane.path):
                    detail = f"{read} of {parts} recorded parts were read"
                    self.findings.note_call(crossing, "stream_underrun", call, detail)

    def changed_message(self, crossing: Crossing, number: int, recorded: str, now: str) -> ReplayMiss:
        """Note that the agent's message in a conversation differs from the recorded one."""
        with self._lock:
            found = diff_json(recorded, now)
            diff = tuple(Diff(f"sent[{number}].{d.path}".rstrip("."), d.recorded, d.now, d.at) for d in found)
            self.counts["changed"] += 1
            return self._stopped(crossing, "changed_call", crossing.paired, diff=diff)

    def stall(self, crossing: Crossing) -> ReplayMiss:
        """Note that a call that was cancelled when recorded is not cancelled now."""
        with self._lock:
            detail = "it was cancelled then, and nothing cancels it now"
            return self._stopped(crossing, "order_stall", crossing.paired, detail)

    def stall_for_ever(self, what: str = "the program waits forever") -> ReplayMiss:
        """Note that the program waits forever: the next recorded completion belongs to a call that is never made."""
        with self._lock:
            missing, _ = self.unplayed()
            _, seq = self.gate.head
            call = next((c for c in (*missing, *self.recording.calls) if c in missing or c.seq == seq), None)
            message = f"{what}, and everything that was recorded has happened"
            if call is not None:
                how = "was not made" if call.seq not in self.index.used else "has not ended"
                message = f"{what}: {name_number(call.number)} ({call.boundary}, lane {call.lane}) {how}"
            if self.extent is not None:
                self.extent.background.wait_in_vain(self)
            self.findings.add_outside(describe_stall(call, message))
            self.is_stopped = True
        self.gate.stalled = message
        self.gate.open()
        return ReplayMiss(message)

    def type_changed(self, crossing: Crossing, what: str, why: str) -> ReplayMiss:
        """Note that a recorded value can't be rebuilt, because its class has changed."""
        with self._lock:
            detail = f"the recorded {what} can't be rebuilt: {why}"
            return self._stopped(crossing, "type_changed", crossing.paired, detail)

    def at_hole(self, message: str) -> ReplayMiss:
        """Note that the replay has reached something that was never recorded: it can't continue."""
        with self._lock:
            self.has_reached_frontier = self.is_stopped = True
            self.hole = message
        return ReplayMiss(message)

    def broken(self, message: str) -> ReplayMiss:
        """Note an internal error; the replay can no longer be called identical."""
        with self._lock:
            self.internal_error = self.internal_error or message
            self.is_stopped = True
        return ReplayMiss(message)

    def deny_socket(self, address: str) -> ReplayMiss:
        """Note a denied connection."""
        with self._lock:
            if len(self.sockets_denied) < DIVERGENCES_MAX:
                self.sockets_denied.append(address)
        return ReplayMiss(f"a connection to {address} was denied: a replay opens no sockets")

    def is_played(self) -> bool:
        """Whether every recorded call was made, and every stream read as far as when recorded."""
        with self._lock:
            streams = self._streams.values()
            is_read = all(each.served is None or read >= count_parts(each.served) for each, read in streams)
            return is_read and not self.unplayed()[0]

    def unplayed(self) -> tuple[list[CallRecord], int]:
        """Return the recorded calls that were not made, and the number of further ones inside served calls."""
        with self._lock:
            left = [c for c in self.recording.calls if c.seq not in self.index.used and not c.meta.get(ALONE)]
            if self.extent is not None:
                left = self.extent.awaited(left)
            missing = [c for c in left if c.seq not in self.index.covered]
            if has_any_workers(self.recording):  # nor is it known which calls such processes have made in this replay
                missing = [c for c in missing if not is_of_process(c.lane)]
            return missing, len(left) - len(missing)
