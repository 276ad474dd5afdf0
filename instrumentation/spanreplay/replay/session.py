"""A replay in progress: resolves each call against the recording and keeps what differed.

Resolution, in this order, never with an implicit live call:
  (1) plan says live            → live, paired with the recorded call for comparison
  (2) same slot, equal key      → serve (exact)
  (3) same provider call id and key → serve (exact)
  (4) equal key elsewhere       → serve, `moved`
  (5) same slot, other key      → `changed_call`; stop, serve by position, or live, as the plan says
  (6) nothing                   → `extra_call`; stop
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from spanreplay import attributes as names
from spanreplay.call import CallRecord, Outcome, Recording
from spanreplay.errors import ConfigError, ReplayMiss
from spanreplay.replay.budget import CostMeter, is_paid
from spanreplay.replay.directions import Direction, Directions
from spanreplay.replay.diverge import Diff, Divergence, comparable_response, diff_json, leaf_strings
from spanreplay.replay.index import RecordingIndex
from spanreplay.replay.order import OrderGate, Turns
from spanreplay.replay.patched import patch_response
from spanreplay.replay.plan import LIVE, SERVE, Plan
from spanreplay.replay.repeats import Repeats
from spanreplay.replay.resume import Continuation
from spanreplay.seal.check import find_tampering

if TYPE_CHECKING:
    from spanreplay.crossing import Crossing
    from spanreplay.replay.stepper import Stepper

DIVERGENCES_MAX = 1000
NEW_TEXTS_MAX = 1000


class Session:
    """State of one replay; thread-safe."""

    def __init__(self, recording: Recording, plan: Plan) -> None:
        self.recording = recording
        self.plan = plan
        self.completeness = recording.completeness()
        self.tampering = find_tampering(recording)
        self.index = RecordingIndex(recording)
        self.directions = Directions(plan, recording)
        self._stepper: Stepper | None = None
        self._has_broken = False
        self.continuation = None if plan.resume is None else Continuation(recording, plan.resume)
        self.meter = None if plan.budget is None else CostMeter(plan.budget)
        self.divergences: list[Divergence] = []
        self.divergences_total = 0
        self.counts: dict[str, int] = dict.fromkeys(("served", "exact", "moved", "live", "changed", "extra"), 0)
        self.sockets_denied: list[str] = []
        self.live_tokens = 0
        self.has_reached_frontier = False
        self.is_stopped = False
        self.is_forked = False
        self.internal_error = ""
        self.stopped = ""
        """Why the replay ended before its recording, where the user said so."""
        self._covered: set[int] = set()
        lane_ends = recording.root.manifest.get("lane_ends")
        timers = recording.root.manifest.get("timers")
        self.gate = OrderGate(
            recording.calls,
            self._covered.__contains__,
            lane_ends if isinstance(lane_ends, dict) else None,
            timers if isinstance(timers, dict) else None,
            Turns.read(recording.root.manifest),
        )
        self._repeats = Repeats(recording)
        self._new_texts: set[str] = set()
        self._lock = threading.RLock()  # a debugger may make calls where it stands

    def resolve(self, crossing: Crossing) -> None:
        """Set `crossing.served` or leave it live. Raises: ReplayMiss."""
        if self.is_forked:
            raise ReplayMiss(f"a forked process can't be replayed: {_place(crossing)}")
        try:
            with self._lock:
                self._resolve(crossing)
        except ReplayMiss:
            self.gate.open()
            raise

    def _resolve(self, crossing: Crossing) -> None:
        index, key = self.index, crossing.key.hex
        slot = (crossing.lane.path, crossing.boundary, crossing.index)
        exact = index.find_exact(slot, key, crossing.spec.call_id)
        moved = None if exact is not None else index.find_moved(crossing.boundary, key)
        found = exact or moved or index.find_in_slot(slot)
        direction = self.directions.decide(crossing, found)
        self._pause(crossing, found)
        cause = self._amend(crossing, direction)
        if direction.action == LIVE:
            self._go_live(crossing, found, is_equal=not cause and (exact or moved) is not None, cause=cause)
        elif cause and found is not None:
            self._change(crossing, found, direction, cause)
        elif exact is not None:
            self._serve(crossing, exact, direction)
            self.counts["exact"] += crossing.served is not None
        elif moved is not None:
            self._move(crossing, moved, direction)
        elif found is not None:
            self._change(crossing, found, direction)
        elif (again := self._repeats.find(crossing.lane.path, crossing.boundary, key)) is not None:
            self._serve(crossing, again, direction)
        else:
            self._extra(crossing)

    def _pause(self, crossing: Crossing, call: CallRecord | None) -> None:
        """Ask the user, hand over to a debugger, or end the replay, where the plan says so. Raises: ReplayMiss."""
        plan = self.plan
        if not (plan.stop_at or plan.is_stepped):
            return
        is_reached = bool(plan.stop_at) and call is not None and call.seq >= plan.stop_at
        if is_reached and call is not None and not plan.is_break:
            raise self.stop(f"stopped before call {call.seq} ({call.boundary}), as asked")
        from spanreplay.replay.stepper import Stepper, break_before_call

        if plan.is_stepped:
            self._stepper = self._stepper or Stepper()
            why = self._stepper.ask(crossing, call)
            if why:
                raise self.stop(why)
        if is_reached and not self._has_broken:
            self._has_broken = True
            break_before_call(is_attached=bool(plan.dap))

    def stop(self, why: str) -> ReplayMiss:
        """The user ends the replay here."""
        with self._lock:
            self.stopped = self.stopped or why
            self.has_reached_frontier = True
            self.is_stopped = True
        return ReplayMiss(why)

    def _amend(self, crossing: Crossing, direction: Direction) -> str:
        """Change the request as the plan says; which patch did, '' if the request is as it was."""
        if not direction.requests:
            return ""
        try:
            is_changed = crossing.amend(direction.requests)
        except ConfigError as exc:
            raise self.broken(str(exc)) from exc
        return f"set by the plan: {direction.requests[0].text}" if is_changed else ""

    def _serve(self, crossing: Crossing, call: CallRecord, direction: Direction) -> None:
        self.index.take(call)
        if call.outcome == Outcome.OPEN.value and self.continuation is not None:
            self._go_on(crossing, call, self.continuation)
            return
        if call.outcome == Outcome.OPEN.value:
            self.has_reached_frontier = True
            self.is_stopped = True
            raise ReplayMiss(f"the recording ends inside this call: {_place(crossing)}")
        covered = self.index.descendants(call.seq)
        self._covered.update(c.seq for c in covered)
        self.counts["served"] += 1
        crossing.served = crossing.paired = call
        if self.continuation is not None:
            crossing.run.renumber(crossing, call.seq)
        if direction.responses:
            self._override(crossing, call, direction)
        self.gate.cover(covered)  # what lies inside this call does not complete by itself any more

    def _override(self, crossing: Crossing, call: CallRecord, direction: Direction) -> None:
        """Serve what the plan says instead; where that is another answer, the replay has diverged by it."""
        try:
            response, outcome = patch_response(call.response, call.outcome, direction.responses)
        except ConfigError as exc:
            raise self.broken(str(exc)) from exc
        self.counts["overridden"] = self.counts.get("overridden", 0) + 1
        crossing.served = replace(call, response=response, outcome=outcome)
        cause = f"set by the plan: {direction.responses[0].text}"
        self._compare_output(crossing, call, outcome, crossing.run.redactor.json_text(response), cause)

    def _go_live(self, crossing: Crossing, call: CallRecord | None, *, is_equal: bool, cause: str = "") -> None:
        self._admit(crossing)
        self.counts["live"] += 1
        crossing.is_live_by_plan = True
        if call is None:
            self._diverge(crossing, "extra_call", None, "the recording has no such call")
            self.counts["extra"] += 1
            return
        self.index.take(call)
        crossing.paired = call
        if not is_equal:
            self.counts["changed"] += 1
            self._diverge(crossing, "changed_call", call, "", cause=cause)

    def _admit(self, crossing: Crossing) -> None:
        """Let a call that costs money begin. Raises: ReplayMiss above the ceiling, or if its price is unknown."""
        spec = crossing.spec
        if self.meter is None or not is_paid(spec.kind):
            return
        try:
            is_admitted = self.meter.admit(crossing.seq, spec.meta, spec.request)
        except ConfigError as exc:
            raise self.broken(f"{exc}; {exc.hint}") from exc
        if not is_admitted:
            raise self.stop(
                f"the budget of ${self.meter.budget.max_cost_usd:g} is used up: {_place(crossing)} was not made"
            )

    def _move(self, crossing: Crossing, call: CallRecord, direction: Direction) -> None:
        self._diverge(crossing, "moved", call, f"was call {call.index} in lane {call.lane}")
        if self.plan.is_strict:
            self.index.take(call)
            self.is_stopped = True
            raise ReplayMiss(self.divergences[-1].message)
        self._serve(crossing, call, direction)
        self.counts["moved"] += 1

    def _change(self, crossing: Crossing, call: CallRecord, direction: Direction, cause: str = "") -> None:
        if direction.on_change == LIVE:
            self._admit(crossing)
        self.counts["changed"] += 1
        self._diverge(crossing, "changed_call", call, "", cause=cause)
        if direction.on_change == SERVE:
            self._serve(crossing, call, direction)
        elif direction.on_change == LIVE:
            self.index.take(call)
            crossing.paired = call
            self.counts["live"] += 1
            crossing.is_live_by_plan = True
        else:
            self.index.take(call)
            self.is_stopped = True
            raise ReplayMiss(self.divergences[-1].message)

    @property
    def has_gone_on(self) -> bool:
        """Whether the run has gone on behind the end of its recording, live."""
        return self.continuation is not None and self.continuation.has_gone_on

    def _go_on(self, crossing: Crossing, call: CallRecord | None, continuation: Continuation) -> None:
        """Make the first call that the recording does not have, and those after it. Raises: ReplayMiss."""
        missing = continuation.find_missing(crossing, self.index, self._covered)
        why = self.tampering or continuation.refuses(call)
        if missing is not None:
            self._diverge(crossing, "missing_call", missing, f"call {missing.seq} ({missing.boundary}) comes before it")
            why = self.divergences[-1].message
        if why:
            self.stopped = "" if missing is not None else why
            self.is_stopped = True
            raise ReplayMiss(why)
        if call is not None:
            crossing.reads = call.reads
        continuation.begin(crossing.run, call)
        self.has_reached_frontier = True
        self.counts["live"] += 1
        crossing.is_live_by_plan = True
        self.gate.go_live()

    def _extra(self, crossing: Crossing) -> None:
        continuation = self.continuation
        if continuation is not None and continuation.is_beyond(crossing.lane.path, self.index, self._covered):
            self._go_on(crossing, None, continuation)
            return
        if _is_open_ended(self.recording) and not self.divergences:
            self.has_reached_frontier = True
            self.is_stopped = True
            raise ReplayMiss(f"the recording ends before this call: {_place(crossing)}")
        self.counts["extra"] += 1
        self._diverge(crossing, "extra_call", None, "the recording has no such call")
        self.is_stopped = True
        raise ReplayMiss(self.divergences[-1].message)

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
            if crossing.paired is not None and outcome is not Outcome.OPEN:
                self._compare_output(crossing, crossing.paired, outcome.value, response)

    def _compare_output(
        self, crossing: Crossing, call: CallRecord, outcome: str, response: str, cause: str = ""
    ) -> None:
        if call.outcome == outcome and call.response == response:
            return
        diff = diff_json(comparable_response(call.response), comparable_response(response))
        if not diff and call.outcome == outcome:
            return
        if call.outcome != outcome:
            diff = (Diff("outcome", call.outcome, outcome), *diff)
        is_downstream = self._is_tainted(crossing, diff)
        self._add(
            Divergence(
                kind="output_changed",
                boundary=crossing.boundary,
                message=f"output changed at {_place(crossing)}: {_first(diff)}",
                lane=crossing.lane.path,
                index=crossing.index,
                seq=crossing.seq,
                code=crossing.code,
                diff=diff,
                cause=cause,
                hint=f"spanreplay show {call.run_id} --call {call.seq}",
                is_downstream=is_downstream and not cause,
                recorded_span_id=call.span_id,
                replay_span_id=f"{crossing.span_context.span_id:016x}",
            )
        )
        self._taint(leaf_strings(response) - leaf_strings(call.response))

    def _diverge(
        self,
        crossing: Crossing,
        kind: str,
        call: CallRecord | None,
        detail: str,
        diff: tuple[Diff, ...] = (),
        cause: str = "",
    ) -> None:
        if call is not None and not diff:
            diff = _visible(diff_json(call.request, crossing.spec.request))
        detail = detail or _first(diff)
        run_id = self.recording.run_id
        hint = f"spanreplay show {run_id}"
        if call is not None:
            hint += f" --call {call.seq}"
        if kind == "changed_call" and self._has_other_key(crossing, diff):
            hint = "the recording's redaction key is another: set SPANREPLAY_REDACT_KEY to the file it was made with"
        elif kind == "changed_call":
            hint += ", or serve it by position with --on-change serve"
        self._add(
            Divergence(
                kind=kind,
                boundary=crossing.boundary,
                message=f"{kind.replace('_', ' ')} at {_place(crossing)}: {detail}",
                lane=crossing.lane.path,
                index=crossing.index,
                seq=crossing.seq,
                code=crossing.code,
                diff=diff if kind == "changed_call" else (),
                cause=cause,
                hint=hint,
                is_downstream=not cause and self._is_tainted(crossing, diff),
                recorded_span_id=call.span_id if call is not None else "",
                replay_span_id=f"{crossing.span_context.span_id:016x}",
            )
        )
        self._taint({d.now for d in diff if isinstance(d.now, str) and len(d.now) >= 8})

    def _has_other_key(self, crossing: Crossing, diff: tuple[Diff, ...]) -> bool:
        key = self.recording.root.env.get(names.REDACTION_KEY)
        differs = bool(key) and key != crossing.run.redactor.fingerprint
        return differs and any("rdx-" in str(d.recorded) and "rdx-" in str(d.now) for d in diff)

    def _taint(self, texts: set[str]) -> None:
        # Bounded, because every later difference is searched for each of them
        self._new_texts.update(sorted(texts)[: max(0, NEW_TEXTS_MAX - len(self._new_texts))])

    def _add(self, divergence: Divergence) -> None:
        self.divergences_total += 1
        if len(self.divergences) < DIVERGENCES_MAX:
            self.divergences.append(divergence)

    def _is_tainted(self, crossing: Crossing, diff: tuple[Diff, ...]) -> bool:
        """Whether an earlier divergence reaches this call: through its lane, or through a text it carries on."""
        if any(_are_related(d.lane, crossing.lane.path) for d in self.divergences):
            return True
        return any(text in str(d.now) for d in diff for text in self._new_texts)

    def check_sent(self, crossing: Crossing, path: str, recorded: object, now: object) -> None:
        """Note that something else came back into a generator. Raises: ReplayMiss unless the plan serves changes."""
        with self._lock:
            self.counts["changed"] += 1
            self._diverge(crossing, "changed_call", crossing.paired, "", (Diff(path, recorded, now),))
            if self.directions.decide(crossing, crossing.paired).on_change == "stop":
                self.is_stopped = True
                raise ReplayMiss(self.divergences[-1].message)

    def add_divergence(self, divergence: Divergence) -> None:
        """Note a difference that was found outside of a call."""
        with self._lock:
            is_downstream = any(_are_related(d.lane, divergence.lane) for d in self.divergences)
            self._add(replace(divergence, is_downstream=is_downstream))

    def overrun(self, crossing: Crossing) -> ReplayMiss:
        """Note that a stream was read further than it was when it was recorded."""
        with self._lock:
            self._diverge(crossing, "stream_overrun", crossing.paired, "more was read than was recorded")
            self.is_stopped = True
            return ReplayMiss(self.divergences[-1].message)

    def changed_message(self, crossing: Crossing, number: int, recorded: str, now: str) -> ReplayMiss:
        """Note that what the agent says in a conversation is not what it said when it was recorded."""
        with self._lock:
            found = diff_json(recorded, now)
            diff = tuple(Diff(f"sent[{number}].{d.path}".rstrip("."), d.recorded, d.now, d.at) for d in found)
            self._diverge(crossing, "changed_call", crossing.paired, "", diff)
            self.counts["changed"] += 1
            self.is_stopped = True
            return ReplayMiss(self.divergences[-1].message)

    def stall(self, crossing: Crossing) -> ReplayMiss:
        """Note that a call that was cancelled when it was recorded is not cancelled now."""
        with self._lock:
            self._diverge(crossing, "order_stall", crossing.paired, "it was cancelled then, and nothing cancels it now")
            self.is_stopped = True
            return ReplayMiss(self.divergences[-1].message)

    def at_hole(self, message: str) -> ReplayMiss:
        """Note that the replay has come to something that was never recorded: it can't go further."""
        with self._lock:
            self.has_reached_frontier = True
            self.is_stopped = True
        return ReplayMiss(message)

    def end_lane(self, lane: str) -> None:
        """A thread or pool call is done: wait until it is its turn to be, as recorded."""
        clock = self.gate.lane_ends.get(lane, -1)
        if asyncio._get_running_loop() is None:
            self.gate.wait_turn(clock)
        self.gate.complete(clock)

    def broken(self, message: str) -> ReplayMiss:
        """Note an error of our own; the replay can't be called identical any more."""
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

    def unplayed(self) -> tuple[list[CallRecord], int]:
        """Recorded calls that nobody asked for, and how many more lay inside served ones."""
        with self._lock:
            left = [c for c in self.recording.calls if c.seq not in self.index.used]
            missing = [c for c in left if c.seq not in self._covered]
            return missing, len(left) - len(missing)


def _is_open_ended(recording: Recording) -> bool:
    """Whether calls may have been made that are not in the recording."""
    manifest = recording.root.manifest
    expected = manifest.get("calls")
    is_short = isinstance(expected, int) and expected > len(recording.calls)
    return not manifest or is_short or bool(manifest.get("dropped"))


def _are_related(a: str, b: str) -> bool:
    return a == b or a.startswith(b + "/") or b.startswith(a + "/")


def _place(crossing: Crossing) -> str:
    where = f"call {crossing.seq} ({crossing.boundary}, lane {crossing.lane.path})"
    return f"{where}, {crossing.code}" if crossing.code else where


def _visible(diff: tuple[Diff, ...]) -> tuple[Diff, ...]:
    kept = tuple(d for d in diff if not d.path.startswith("headers"))
    return tuple(Diff(d.path.removeprefix("body."), d.recorded, d.now, d.at) for d in kept)


def _first(diff: tuple[Diff, ...]) -> str:
    if not diff:
        return "it differs in fields that are not shown"
    first = diff[0]
    place = f"{first.path} differs" + (f" at character {first.at}" if first.at >= 0 else "")
    return place + (f", and {len(diff) - 1} more" if len(diff) > 1 else "")
