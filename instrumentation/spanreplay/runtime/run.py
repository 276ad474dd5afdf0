"""The active run: its identity, its clock, its lanes and the contents of its manifest."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from opentelemetry.trace import SpanContext, TraceFlags

from spanreplay.model import config, guard, ids
from spanreplay.model.call import LOST, Outcome
from spanreplay.model.lane_names import is_within
from spanreplay.model.levels import FULL, MEMBER, Level
from spanreplay.model.own_threads import make_lock, wait_until
from spanreplay.recording.seal.leaves import Leaves
from spanreplay.recording.seal.tree import LEAF_VERSION
from spanreplay.runtime.caller.running import RUN
from spanreplay.runtime.equip import equip
from spanreplay.runtime.lanes import Clock, Lane, enter_lane
from spanreplay.runtime.order.loops import make_book
from spanreplay.runtime.order.wait_ends import known_timers
from spanreplay.runtime.process import late_items, own_ports
from spanreplay.runtime.processes import JoinToken, ProcessGroup, RemoteCrossing, add_parts, count_lost, find_lost
from spanreplay.runtime.root import build_root_attributes, sign_root
from spanreplay.runtime.who import Who

if TYPE_CHECKING:
    from spanreplay.recording.sampling.tally import Tally
    from spanreplay.redact import RunRedactor
    from spanreplay.runtime.answers import Answers, Resolver
    from spanreplay.runtime.contributors import (
        Audit,
        Environment,
        Files,
        Leaks,
        OpenCall,
        OtherSpans,
        Output,
        Overlay,
    )
    from spanreplay.runtime.emit import Emitter
    from spanreplay.runtime.order.lock_order import LockOrder
    from spanreplay.runtime.order.run_order import RunOrder
    from spanreplay.runtime.reads import Reads


_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
HOLES_MAX = 50
ENDING_S_MAX = 1.0
"""How long the end of a run waits for other threads that are recording the end of a call."""


class Run:
    """One execution of an agent. Thread-safe; counters are guarded by one lock."""

    is_off = False
    """Whether it stands for a unit that is not recorded: its code has no run."""
    lock_order: LockOrder
    """Lock acquisition order: the order in which threads pass shared places."""
    order: RunOrder
    """Where threads and lanes go on."""
    resolver: Resolver
    """How calls are answered."""

    def __init__(
        self,
        *,
        app: str,
        emitter: Emitter,
        redactor: RunRedactor,
        session: Answers | None = None,
        user_id: str = "",
        session_id: str = "",
        run_id: str = "",
        environment: Mapping[str, Any] | None = None,
        level: Level = FULL,
    ) -> None:
        self.run_id = run_id or ids.new_run_id()
        self.app = app
        self.emitter = emitter
        self.redactor = redactor
        self.session = session
        self.who = Who(user_id, session_id)
        self.level = level
        self.environment: Mapping[str, Any] = {**(environment or {}), **level.for_environment()}
        self.output: Output | None = None
        self.reads: Reads | None = None
        self.tally: Tally | None = None
        """Counts which units of this process are kept; None if all are."""
        self.before_end: Callable[[], object] | None = None
        """Called once, before the run ends: its process's units end first."""
        self.environment_read: Environment | None = None
        self.leaks: Leaks | None = None
        self.written: Files | None = None
        self.overlay: Overlay | None = None
        self.audit: Audit | None = None
        self.start_ns = ids.now_ns()
        self.span_context = SpanContext(ids.new_trace_id(), ids.new_span_id(), is_remote=False, trace_flags=_SAMPLED)
        self.others: OtherSpans | None = None
        """Spans of others that are recorded too; None if they are not."""
        self.clock = Clock()
        self.root_lane = Lane("main", clock=self.clock)
        self.key_memo = _new_key_memo()
        self.is_entered = False
        """Whether it is the run of a block, not of the process."""
        self.loops = None if session is not None else make_book(self)
        """Where completions come in event loops; None in a replay, which decides that itself."""
        self.lock_order, self.order, self.resolver = equip(self) if session is None else session.equip(self)
        self.process_group: ProcessGroup | None = None
        """State that the processes of this run share; None while there is only one."""
        self.is_member = False
        """Whether another process is the run's first."""
        self._is_helper, self._member_pid = False, 0
        self._parts: dict[int, dict[str, Any]] | None = None
        self.digester = _new_digester(redactor)
        self._signing_key = config.read_setting("SPANREPLAY_SIGNING_KEY")
        self._lock = make_lock()
        self.continuation = None if session is None else session.continuation
        self.clock.now = 0 if self.continuation is None else self.continuation.last_clock
        self._reset()
        self.on_join: list[Callable[[], None]] = []
        """To be repeated in a process that joins the run."""
        self.forks = 0
        """How many processes were forked that have runs of their own."""
        self.ended_by = ""
        """The signal that ended the process; '' if none did."""
        self.suspended: dict[str, Any] = {}
        """The event that the run waits for, if it was suspended."""
        self.on_suspend: Callable[[str], NoReturn] | None = None
        """Ends the process that is suspended; None in a block."""

    def _reset(self) -> None:
        """Set the state of a process in which nothing has happened yet."""
        self.constants: dict[tuple[str, ...], bytes] = {}
        """The constant part of every record of a boundary in a lane, as the spool holds it."""
        self.calls = 0
        """How many calls were opened; a run has at most `config.CALLS_MAX`."""
        self._lanes: dict[str, int] = {}
        self._lane_ends: dict[str, int] = {}
        self._timers: dict[str, tuple[int, int]] | None = {} if "timers" in self.level else None
        self._sleeps = 0
        self.waits: dict[str, list[str]] = {}
        """Name of a timer that tells which of some lanes had ended → those lanes."""
        self.leaves = Leaves(self._first_open)
        self._counts: dict[str, int] = {}
        self._open: dict[int, OpenCall] = {}
        self._holes: list[str] = []
        self._is_started = self.is_member  # the root record is the first process's
        self.is_ended = False

    def restart(self, run_id: str, emitter: Emitter) -> None:
        """Continue as another run, in a process that was forked for it; the clock and the lanes continue."""
        self._lock = make_lock()
        self.run_id, self.emitter, self.start_ns = run_id, emitter, ids.now_ns()
        self.span_context = SpanContext(ids.new_trace_id(), ids.new_span_id(), is_remote=False, trace_flags=_SAMPLED)
        self._reset()

    @property
    def is_continued(self) -> bool:
        """Whether this run continues a recorded one, whose calls become its own."""
        return self.continuation is not None

    def renumber(self, crossing: OpenCall, seq: int) -> None:
        """Give a call the number that it has in the run that this one continues."""
        with self._lock:
            self._open.pop(crossing.seq, None)
            crossing.seq = seq
            self._open[seq] = crossing

    def tick(self) -> int:
        """The next value of the run's Lamport clock; the first call gets 1."""
        with self._lock:
            return self._next()

    def is_now(self, clock: int) -> bool:
        """Whether nothing has happened in this run since. Always False when the run has more than one process."""
        return self.process_group is None and self.clock.now == clock

    def _next(self) -> int:
        self.clock.now = self.clock.now + 1 if self.process_group is None else self.process_group.tick()
        return self.clock.now

    # ── other processes ─────────────────────────────────────────────────────────────────────────────
    def share(self) -> ProcessGroup:
        """The state shared by this run's processes; created just before the first other process is started."""
        with self._lock:
            if self.process_group is None:
                self.process_group = ProcessGroup.make(self.clock.now)
                self.order.share(self.process_group)
            return self.process_group

    def join(self, join_token: JoinToken) -> None:
        """Continue, in a process that was just started, as a part of the join token's run."""
        self._lock = make_lock()
        self.run_id, self.is_member, self.is_ended = join_token.run_id, True, False
        self._is_helper, self._member_pid = join_token.is_helper, os.getpid()
        self.process_group = ProcessGroup(Path(join_token.folder), join_token.number)
        self.process_group.is_worker = join_token.is_worker
        owner = RemoteCrossing(join_token.owner, self.root_lane) if join_token.owner >= 0 else None
        self.root_lane = Lane(join_token.lane, owner, clock=self.clock)
        self.process_group.lanes_here.append(join_token.lane)
        enter_lane(self.root_lane)
        self.span_context = SpanContext(
            int(join_token.trace_id, 16), int(join_token.span_id, 16), is_remote=False, trace_flags=_SAMPLED
        )
        self.output = None
        self._reset()
        self.resolver.join(self.process_group)
        for attach in tuple(self.on_join):
            attach()

    @property
    def has_joined(self) -> bool:
        """Whether this process itself, and not the one that it was forked from, has joined the run."""
        return self._member_pid == os.getpid() and not self._is_helper

    def write_part(self) -> None:
        """Store this process's part of the run for the first process."""
        if self.process_group is None:
            return
        part: dict[str, Any] = {
            "manifest": self._manifest(None),
            "leaves": self.leaves.take(),
            "tickets": [asdict(join_token) for join_token in self.process_group.join_tokens],
            "at_work": self.process_group.at_work,
            **self.resolver.to_part(),
        }
        self.process_group.write_part(part)
        self.process_group.state_working(0)

    def gather(self) -> None:
        """Add the parts of the run's other processes; called in the first process, after they have ended."""
        if self.process_group is None or self.is_member or self._parts is not None:
            return
        self._parts = self.process_group.read_parts()
        if self.resolver.add_parts(self._parts):
            return
        lost = count_lost(self.process_group.join_tokens, self._parts)
        if lost:
            self.count(LOST, lost)
        for reason in find_lost(self.process_group.join_tokens, self._parts):
            self._is_started = True
            self.hole(reason)
        with self._lock:
            for part in self._parts.values():
                self.leaves.extend((seq, leaf) for seq, leaf in part["leaves"])
                self._is_started = self._is_started or bool(part["manifest"]["calls"])
                self._holes += part["manifest"].pop("holes", [])[: HOLES_MAX - len(self._holes)]

    def owns(self, lane: str) -> bool:
        """Whether the work of a lane happens in this process."""
        shared = self.process_group
        if shared is None:
            return True
        within = [path for path in (shared.lanes_here if self.is_member else shared.lanes) if is_within(lane, path)]
        return bool(within) == self.is_member

    def complete(self, opened_in: int = -1) -> tuple[int, int]:
        """The clock of a completion, and that of the first one in the same loop iteration (-1: this one).

        Nobody can react to a completion before the iteration ends, so a replay has to release them together. For
        `opened_in` see `LoopBook.note`.
        """
        with self._lock:
            self.clock.now = end_seq = self.clock.now + 1 if self.process_group is None else self.process_group.tick()
        return end_seq, -1 if self.loops is None else self.loops.note(end_seq, opened_in)

    def count(self, name: str, by: int = 1) -> None:
        """Add to one of the manifest's counters (dropped, truncated, unserializable …)."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + by

    def hole(self, reason: str) -> None:
        """Note a reason why the recording can't be replayed completely; at most 50 are kept."""
        with self._lock:
            if len(self._holes) < HOLES_MAX:
                self._holes.append(reason)
            self._counts["holes_total"] = self._counts.get("holes_total", 0) + 1

    def open_call(self, crossing: OpenCall) -> int:
        """Register a call and return its clock; the first one writes the root's `open` record before its own."""
        lane = crossing.lane.path
        guard.guarded("for whom the run works", self.who.look)
        with self._lock:
            self.clock.now = seq = self.clock.now + 1 if self.process_group is None else self.process_group.tick()
            if self.leaves.is_closed:
                crossing.leave_out()
                return seq
            self.calls += 1
            self._open[seq] = crossing
            lane = lane if lane in self._lanes or len(self._lanes) < config.LANES_MAX else config.OTHER_LANES
            self._lanes[lane] = self._lanes.get(lane, 0) + 1
            is_first, self._is_started = not self._is_started, True
        if is_first:
            guard.guarded("root record", self._emit_root, Outcome.OPEN, {})
        if self.leaks is not None:
            self.leaks.look(seq)
        return seq

    def has_calls_under_way(self) -> bool:
        """Whether a call has not returned yet; a stream that was given to the agent has returned."""
        return any(each.on_abandon is None for each in list(self._open.values()))

    def _first_open(self) -> int:
        """A number below which every call has ended; -1 if calls with lower numbers may still come in."""
        with self._lock:
            is_alone = self.process_group is None and self.continuation is None
            return min(list(self._open), default=self.clock.now + 1) if is_alone else -1

    def closed(self, crossing: OpenCall, outcome: Outcome) -> None:
        """Note that a call has ended."""
        self._open.pop(crossing.seq, None)  # without the lock: the operation is atomic

    @property
    def has_calls(self) -> bool:
        """Whether any boundary was crossed."""
        return self._is_started

    def end_units(self) -> None:
        """End the units that this process still serves; idempotent."""
        before_end, self.before_end = self.before_end, None
        if before_end is not None:
            guard.guarded("units under way", before_end)

    def finish(self, outcome: Outcome = Outcome.OK, exit_status: int | None = None) -> None:
        """End the run: close open calls, write the final root record. Idempotent."""
        self.end_units()
        with self._lock:
            if self.is_ended:
                return
            self.is_ended = True
        self._end_calls()
        if self.loops is not None:
            self.loops.finish()
        if self.is_member:
            if not self._is_helper:
                guard.guarded("the end of a process", self.write_part)
            return
        guard.guarded("the parts of other processes", self.gather)
        if self._is_started or not self.resolver.keeps or not (self.tally is None or self.tally.is_empty):
            guard.guarded("root record", self._emit_root, outcome, self._manifest(exit_status))
        if self.process_group is not None:
            self.process_group.close()

    def note_lane_end(self, lane: str, is_remote: bool) -> None:
        """Note that others are about to see the end of a lane's work; `is_remote` if another process did the work."""
        with self._lock:
            is_known = is_remote or lane in self._lanes
            if self._has_gone_on and is_known and len(self._lane_ends) < config.LANE_ENDS_MAX:
                self._lane_ends[lane] = self._next()

    def end_timer(self, name: str, is_sleep: bool = False) -> None:
        """Note a timer that fires; above TIMERS_MAX none are kept, and only the first SLEEPS_MAX sleeps."""
        if "timers" not in self.level:
            return
        clock = self.complete()
        with self._lock:
            self._sleeps += is_sleep
            if self._timers is not None and self._has_gone_on and not (is_sleep and self._sleeps > config.SLEEPS_MAX):
                self._timers[name] = clock
                if len(self._timers) > config.TIMERS_MAX:
                    self._timers = None

    @property
    def _has_gone_on(self) -> bool:
        """Whether the run has gone past the end of the recording that it continues."""
        return self.continuation is None or self.continuation.has_gone_on

    def close_open_calls(self) -> None:
        """End the record of every call in flight; a partly read stream ends where it was left."""
        with self._lock:
            still_open = list(self._open.values())
        for crossing in still_open:
            guard.guarded("closing an open call", crossing.abandon)

    def _end_calls(self) -> None:
        """End every call, after threads that are ending one have recorded that; nothing is counted afterwards."""
        self.close_open_calls()
        wait_until(lambda: not any(each.is_closing_elsewhere for each in list(self._open.values())), ENDING_S_MAX)
        self.leaves.close()
        self.close_open_calls()

    def _manifest(self, exit_status: int | None) -> dict[str, Any]:
        with self._lock:
            count, root = self.leaves.root()
            begun = {} if self.loops is None else self.loops.find_begun()
            timers = None if self._timers is None else known_timers(self._timers | begun, self.waits, self._lane_ends)
            manifest: dict[str, Any] = {
                MEMBER: self.level.name,
                "calls": self.calls,
                "lanes": dict(sorted(self._lanes.items())),
                "lane_ends": dict(self._lane_ends),
                **({} if timers is None else {"timers": timers}),
                **({} if self.loops is None else self.loops.describe()),
                **self.lock_order.describe(),
                "root": root,
                "leaves": count,
                "leaf_version": LEAF_VERSION,
                "dropped": self.emitter.dropped + self._counts.pop("dropped", 0),
                **self._counts,
            }
            if self._holes:
                manifest["holes"] = list(self._holes)
        if self.redactor.errors:
            manifest["redaction_errors"] = self.redactor.errors
        if guard.failures:
            manifest["failures"] = dict(guard.failures)
        manifest.update({} if self.reads is None else self.reads.finish())
        if self.environment_read is not None:
            manifest.update(self.environment_read.for_manifest(self._parts or {}))
        manifest.update({} if self.others is None else self.others.for_manifest())
        manifest.update({} if self.tally is None else self.tally.for_manifest())
        manifest.update(self.who.for_manifest(self._parts, is_member=self.is_member))
        manifest.update({} if self.leaks is None else self.leaks.for_manifest())
        manifest.update(own_ports.for_manifest() | late_items.for_manifest(self) | self.order.for_manifest())
        if self._parts:
            add_parts(manifest, self._parts)
        if self.environment:
            code = guard.guarded("the agent's files", self._find_code)
            if code:
                manifest["code"] = code
        manifest.update((self.written and guard.guarded("written files", self.written.describe)) or {})
        if exit_status is not None:
            manifest["exit"] = exit_status
        if self.ended_by:
            manifest["ended_by"] = self.ended_by
        if self.suspended:
            manifest["suspended"] = self.suspended
        if self.continuation is not None:
            manifest = self.continuation.extend(manifest)
        if self.output is not None:
            manifest.update(self.output.describe(self.redactor))
        return manifest

    def _find_code(self) -> dict[str, str]:
        from spanreplay.runtime.process.environment import describe_code

        return describe_code()

    def _emit_root(self, outcome: Outcome, manifest: Mapping[str, Any]) -> None:
        is_replay = not self.resolver.keeps and not (self.is_continued and self._has_gone_on)
        attributes = build_root_attributes(self, outcome, manifest, is_replay=is_replay)
        end_ns = max(ids.now_ns(), self.start_ns) if manifest else self.start_ns
        if manifest and self._signing_key and not is_replay:
            guard.guarded("the signature of a run", sign_root, self, attributes, end_ns, self._signing_key)
        self.emitter.find_sink(self.run_id)  # so that the spool's first file can take calls
        self.emitter.emit(
            name=self.app,
            span_context=self.span_context,
            parent=None,
            attributes=attributes,
            start_ns=self.start_ns,
            end_ns=end_ns,
            is_error=outcome is Outcome.ERROR,
        )


def _new_key_memo() -> Any:
    from spanreplay.model.keys import KeyMemo

    return KeyMemo()


def _new_digester(redactor: RunRedactor) -> Any:
    from spanreplay.model.digests import Digester

    return Digester(lambda purpose: redactor.derive(purpose))  # the key file is made at first use


_run: contextvars.ContextVar[Run | None] = RUN
_process_run: Run | None = None


def is_process_run(run: Run) -> bool:
    """Whether a run is that of the process, not of one unit of its work."""
    return run is _process_run


def set_process_run(run: Run | None) -> None:
    """Make `run` the run of every thread that has none of its own."""
    global _process_run
    _process_run = run


def active_run() -> Run | None:
    """The run that the calling code belongs to, or None when nothing is recorded."""
    run = _run.get()
    if run is None or run.is_ended:  # work that a unit leaves running continues in the process's run
        run = None if run is not None and run.is_off else _process_run
    return None if run is None or run.is_ended else run


def root_lane_of_active_run() -> Lane | None:
    """The active run's root lane, or None."""
    run = active_run()
    return None if run is None else run.root_lane
