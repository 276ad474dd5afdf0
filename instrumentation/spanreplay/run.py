"""The active run: its identity, its clock, its lanes and what its manifest will say."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from spanreplay import config, guard, ids
from spanreplay.call import Outcome
from spanreplay.family import Family, RemoteCrossing, Ticket, add_parts, count_lost, find_lost
from spanreplay.handovers import HandoverBook, Handovers, read_handovers
from spanreplay.lane_end import LaneEnd, known_timers
from spanreplay.lanes import Lane, current_lane, enter_lane, is_within
from spanreplay.loops import LoopBook, begin
from spanreplay.root import build_root_attributes
from spanreplay.seal.leaves import Leaves
from spanreplay.seal.tree import LEAF_VERSION, hash_root
from spanreplay.steps import RUN

if TYPE_CHECKING:
    from spanreplay.crossing import Crossing
    from spanreplay.local.census import Census
    from spanreplay.local.environ import Environment
    from spanreplay.local.leaks import Leaks
    from spanreplay.local.reads import Reads
    from spanreplay.local.written import Written
    from spanreplay.output import OutputCapture
    from spanreplay.record import Emitter
    from spanreplay.redact import RunRedactor
    from spanreplay.replay.hermetic import StrictReads
    from spanreplay.replay.overlay import Overlay
    from spanreplay.replay.session import Session


_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
HOLES_MAX = 50


class Run:
    """One execution of an agent. Thread-safe; counters are guarded by one lock."""

    def __init__(
        self,
        *,
        app: str,
        emitter: Emitter,
        redactor: RunRedactor,
        session: Session | None = None,
        user_id: str = "",
        session_id: str = "",
        run_id: str = "",
        environment: Mapping[str, Any] | None = None,
    ) -> None:
        self.run_id = run_id or ids.new_run_id()
        self.app = app
        self.emitter = emitter
        self.redactor = redactor
        self.session = session
        self.user_id = user_id
        self.session_id = session_id
        self.environment: Mapping[str, Any] = environment or {}
        self.output: OutputCapture | None = None
        self.reads: Reads | None = None
        self.environment_read: Environment | None = None
        self.leaks: Leaks | StrictReads | None = None
        self.written: Written | None = None
        self.overlay: Overlay | None = None
        self.census: Census | None = None
        self.start_ns = ids.now_ns()
        self.span_context = SpanContext(
            ids.new_trace_id(), ids.new_span_id(), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
        )
        self.context = trace.set_span_in_context(NonRecordingSpan(self.span_context), otel_context.Context())
        self.root_lane = Lane("main")
        self.key_memo = _new_key_memo()
        self.is_entered = False
        """Whether it is the run of a block, not of the process."""
        self.loops = None if session is not None else LoopBook(self)
        """How the turns of event loops are numbered; None in a replay, which makes them."""
        self.handovers: Handovers = HandoverBook() if session is None else _recorded_handovers(session)
        """Who comes next where threads meet."""
        self.family: Family | None = None
        """What the processes of this run share; None while there is only one."""
        self.is_member = False
        """Whether another process is the run's first."""
        self._is_helper = False
        self._member_pid = 0
        self._parts: dict[int, dict[str, Any]] | None = None
        self.digester = _new_digester(redactor)
        self._lock = threading.RLock()
        self._seq = 0
        self._reset()
        self.suspended: dict[str, Any] = {}
        """What the run waits for, where it was suspended."""
        self.on_suspend: Callable[[str], NoReturn] | None = None
        """Ends the process that is suspended; None in a block."""
        self._continuation = None if session is None else session.continuation
        if self._continuation is not None:
            self._seq = self._continuation.last_clock

    def _reset(self) -> None:
        """Nothing has happened in this process yet."""
        self.constants: dict[tuple[str, ...], bytes] = {}
        """What is the same in every record of a boundary in a lane, as the spool holds it."""
        self.calls = 0
        """How many calls were opened; a run has at most `config.CALLS_MAX`."""
        self._lanes: dict[str, int] = {}
        self._lane_ends: dict[str, int] = {}
        self._timers: dict[str, tuple[int, int]] | None = {}
        self._sleeps = 0
        self.waits: dict[str, list[str]] = {}
        """Name of a timer that tells which of some lanes had ended → those lanes."""
        self.leaves = Leaves()
        self._counts: dict[str, int] = {}
        self._open: dict[int, Crossing] = {}
        self._holes: list[str] = []
        self._is_started = self.is_member  # the root record is the first process's
        self.is_ended = False

    @property
    def is_continued(self) -> bool:
        """Whether this run goes on with a recorded one, whose calls become its own."""
        return self._continuation is not None

    def renumber(self, crossing: Crossing, seq: int) -> None:
        """Give a call the number that it has in the run that this one goes on with."""
        with self._lock:
            self._open.pop(crossing.seq, None)
            crossing.seq = seq
            self._open[seq] = crossing

    def tick(self) -> int:
        """The next value of the run's logical clock; the first call gets 1."""
        with self._lock:
            return self._next()

    def is_now(self, clock: int) -> bool:
        """Whether nothing has happened in this run since; of several processes nobody knows."""
        return self.family is None and self._seq == clock

    def _next(self) -> int:
        self._seq = self._seq + 1 if self.family is None else self.family.tick()
        return self._seq

    # ── other processes ─────────────────────────────────────────────────────────────────────────────
    def share(self) -> Family:
        """What the processes of this run share; made when the first one is about to be started."""
        with self._lock:
            if self.family is None:
                self.family = Family.make(self._seq)
                if self.session is not None:
                    self.session.gate.share(self.family)
            return self.family

    def join(self, ticket: Ticket) -> None:
        """Go on, in a process that was just started, as a part of the run that the ticket is for."""
        self._lock = threading.RLock()
        self.run_id, self.is_member, self.is_ended = ticket.run_id, True, False
        self._is_helper, self._member_pid = ticket.is_helper, os.getpid()
        self.family = Family(Path(ticket.folder), ticket.number)
        owner = RemoteCrossing(ticket.owner, self.root_lane) if ticket.owner >= 0 else None
        self.root_lane = Lane(ticket.lane, owner)
        self.family.lanes_here.append(ticket.lane)
        enter_lane(self.root_lane)
        self.span_context = SpanContext(
            int(ticket.trace_id, 16), int(ticket.span_id, 16), is_remote=False, trace_flags=_SAMPLED
        )
        self.context = trace.set_span_in_context(NonRecordingSpan(self.span_context), otel_context.Context())
        otel_context.attach(self.context)
        self.output = None
        self._reset()
        if self.session is not None:
            from spanreplay.replay import parts

            parts.join(self.session, self.family, is_worker=ticket.is_worker)
        else:
            self.loops = LoopBook(self)
        if self.reads is not None:
            from spanreplay.local import attach_reads

            attach_reads(self)

    @property
    def has_joined(self) -> bool:
        """Whether this process, not one that it was forked from, has joined the run."""
        return self._member_pid == os.getpid() and not self._is_helper

    def _finish_part(self) -> None:
        """Leave what this process adds to the run for the first one."""
        if self.family is None:
            return
        part: dict[str, Any] = {
            "manifest": self._manifest(None),
            "leaves": self.leaves.take(),
            "tickets": [asdict(ticket) for ticket in self.family.tickets],
        }
        if self.session is not None:
            from spanreplay.replay import parts

            part["session"] = parts.to_part(self.session)
        self.family.write_part(part)
        self.family.state_working(0)

    def gather(self) -> None:
        """Take in what the other processes of this run have left; the first process does, once they have ended."""
        if self.family is None or self.is_member or self._parts is not None:
            return
        self._parts = self.family.read_parts()
        if self.session is not None:
            from spanreplay.replay import parts

            for number in sorted(self._parts):
                parts.add_part(self.session, self._parts[number]["session"])
            return
        for name, lost in count_lost(self.family.tickets, self._parts).items():
            if lost:
                self.count(name, lost)
        for reason in find_lost(self.family.tickets, self._parts):
            self._is_started = True
            self.hole(reason)
        with self._lock:
            for part in self._parts.values():
                self.leaves.extend((seq, leaf) for seq, leaf in part["leaves"])
                self._is_started = self._is_started or bool(part["manifest"]["calls"])
                self._holes += part["manifest"].pop("holes", [])[: HOLES_MAX - len(self._holes)]

    def owns(self, lane: str) -> bool:
        """Whether what happens in a lane happens in this process."""
        shared = self.family
        if shared is None:
            return True
        within = [path for path in (shared.lanes_here if self.is_member else shared.lanes) if is_within(lane, path)]
        return bool(within) == self.is_member

    def complete(self, opened_in: int = -1) -> tuple[int, int]:
        """The clock of a completion, and that of the first one in the same turn of the event loop (-1: this one).

        Nobody can react to a completion before the turn ends, so a replay has to release them together.
        For `opened_in` see `LoopBook.note`.
        """
        with self._lock:
            self._seq = end_seq = self._seq + 1 if self.family is None else self.family.tick()
        return end_seq, -1 if self.loops is None else self.loops.note(end_seq, opened_in)

    def count(self, name: str, by: int = 1) -> None:
        """Add to one of the manifest's counters (dropped, truncated, unserializable …)."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + by

    def hole(self, reason: str) -> None:
        """Something that makes the recording impossible to replay whole; at most 50 are kept."""
        with self._lock:
            if len(self._holes) < HOLES_MAX:
                self._holes.append(reason)
            self._counts["holes_total"] = self._counts.get("holes_total", 0) + 1

    def open_call(self, crossing: Crossing) -> int:
        """Enter a call in the books, and write the root's `open` record before the first one; the call's clock."""
        lane = crossing.lane.path
        with self._lock:
            self._seq = seq = self._seq + 1 if self.family is None else self.family.tick()
            self.calls += 1
            self._open[seq] = crossing
            self._lanes[lane] = self._lanes.get(lane, 0) + 1
            is_first = not self._is_started
            self._is_started = True
        if is_first:
            guard.guarded("root record", self._emit_root, Outcome.OPEN, {})
        return seq

    def closed(self, crossing: Crossing) -> None:
        """A call has ended."""
        self._open.pop(crossing.seq, None)  # without the lock: threads cannot break it up

    @property
    def has_calls(self) -> bool:
        """Whether any boundary was crossed."""
        return self._is_started

    def finish(self, outcome: Outcome = Outcome.OK, exit_status: int | None = None) -> None:
        """End the run: close what is open, write the final root record. Idempotent."""
        with self._lock:
            if self.is_ended:
                return
            self.is_ended = True
        self.close_open_calls()
        if self.loops is not None:
            self.loops.finish()
        if self.is_member:
            if not self._is_helper:
                guard.guarded("the end of a process", self._finish_part)
            return
        guard.guarded("the parts of other processes", self.gather)
        if self._is_started or self.session is not None:
            guard.guarded("root record", self._emit_root, outcome, self._manifest(exit_status))
        if self.family is not None:
            self.family.close()

    def end_lane(self, lane: Lane) -> None:
        """A thread of this run is done; in a replay, wait until it is its turn to be."""
        LaneEnd(self, lane.path).end_thread()

    def note_lane_end(self, lane: str, is_remote: bool) -> None:
        """What was done in a lane is about to be seen by others; `is_remote` if another process did it."""
        with self._lock:
            is_known = is_remote or lane in self._lanes
            if self._has_gone_on and is_known and len(self._lane_ends) < config.LANE_ENDS_MAX:
                self._lane_ends[lane] = self._next()

    def end_timer(self, name: str, is_sleep: bool = False) -> None:
        """A timer of the agent's fires; of more than TIMERS_MAX none is kept, of sleeps the first SLEEPS_MAX."""
        clock = self.complete()
        with self._lock:
            is_kept = not is_sleep or self._sleeps < config.SLEEPS_MAX
            self._sleeps += is_sleep
            if self._timers is not None and self._has_gone_on and is_kept:
                self._timers[name] = clock
                if len(self._timers) > config.TIMERS_MAX:
                    self._timers = None

    @property
    def _has_gone_on(self) -> bool:
        """Whether what happens now is not in the recording that this run goes on with."""
        return self._continuation is None or self._continuation.has_gone_on

    def close_open_calls(self) -> None:
        """End the record of every call in flight; a stream that was read in part ends where it was left."""
        with self._lock:
            still_open = list(self._open.values())
        for crossing in still_open:
            guard.guarded("closing an open call", crossing.abandon)

    def _manifest(self, exit_status: int | None) -> dict[str, Any]:
        with self._lock:
            leaves = [leaf for _, leaf in self.leaves.take()]
            begun = {} if self.loops is None else self.loops.find_begun()
            timers = None if self._timers is None else known_timers(self._timers | begun, self.waits, self._lane_ends)
            manifest: dict[str, Any] = {
                "calls": self.calls,
                "lanes": dict(sorted(self._lanes.items())),
                "lane_ends": dict(self._lane_ends),
                **({} if timers is None else {"timers": timers}),
                **({} if self.loops is None else self.loops.describe()),
                **self.handovers.describe(),
                "root": hash_root(leaves),
                "leaves": len(leaves),
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
            manifest["environment_read"] = self.environment_read.describe()
        manifest.update({} if self.leaks is None else self.leaks.for_manifest())
        if self._parts:
            add_parts(manifest, self._parts)
        if self.environment:
            code = guard.guarded("the agent's files", _describe_code)
            if code:
                manifest["code"] = code
        manifest.update((self.written and guard.guarded("written files", self.written.describe)) or {})
        if exit_status is not None:
            manifest["exit"] = exit_status
        if self.suspended:
            manifest["suspended"] = self.suspended
        if self._continuation is not None:
            manifest = self._continuation.extend(manifest)
        if self.output is not None:
            manifest["stdout"] = self.output.summarize(self.redactor)
        return manifest

    def _emit_root(self, outcome: Outcome, manifest: Mapping[str, Any]) -> None:
        is_replay = self.session is not None and not (self.is_continued and self._has_gone_on)
        attributes = build_root_attributes(self, outcome, manifest, is_replay=is_replay)
        self.emitter.find_sink(self.run_id)  # so that the spool's first file can take calls
        self.emitter.emit(
            name=self.app,
            span_context=self.span_context,
            parent=None,
            attributes=attributes,
            start_ns=self.start_ns,
            end_ns=ids.now_ns() if manifest else self.start_ns,
            is_error=outcome is Outcome.ERROR,
        )


def _new_key_memo() -> Any:
    from spanreplay.keys import KeyMemo

    return KeyMemo()


def _recorded_handovers(session: Session) -> Handovers:
    from spanreplay.replay.handovers import RecordedHandovers

    return RecordedHandovers(session.gate, read_handovers(session.recording.root.manifest))


def _describe_code() -> dict[str, str]:
    from spanreplay.env import describe_code

    return describe_code()


def _new_digester(redactor: RunRedactor) -> Any:
    from spanreplay.digests import Digester

    return Digester(lambda purpose: redactor.derive(purpose))  # the key file is made at first use


_run: contextvars.ContextVar[Run | None] = RUN
_process_run: Run | None = None


def set_process_run(run: Run | None) -> None:
    """Make `run` the run of every thread that has none of its own."""
    global _process_run
    _process_run = run


def active_run() -> Run | None:
    """The run that the calling code belongs to, or None when nothing is recorded."""
    run = _run.get() or _process_run
    return None if run is None or run.is_ended else run


class entered:  # noqa: N801 -- reads as a statement: `with entered(run):`
    """Make a run the active one of this context, with its root span current."""

    __slots__ = ("_context_token", "_run", "_token")

    def __init__(self, run: Run) -> None:
        self._run = run

    def __enter__(self) -> Run:
        self._run.is_entered = True
        self._token = _run.set(self._run)
        self._context_token = otel_context.attach(self._run.context)
        return self._run

    def __exit__(self, *exc_info: object) -> None:
        otel_context.detach(self._context_token)
        _run.reset(self._token)


class carried:  # noqa: N801 -- reads as a statement: `with carried_run:`
    """Enter the run of the code that makes this, in another thread; its root span unless one is current there."""

    __slots__ = ("_context_token", "_run", "_token", "ends_lane")

    def __init__(self, lane: Lane) -> None:
        self._run = _run.get()
        run = self._run or active_run()
        if run is not None:
            run.handovers.is_shared = True
            guard.guarded("what a run begins", begin, run, lane.path)
        self.ends_lane = True
        """Whether the end of the block is the end of its lane; a pool's call ends when its future does."""

    def end_of(self, lane: Lane) -> LaneEnd | None:
        """The end of a lane of the run that this carries; None without one."""
        run = self._run or active_run()
        return None if run is None else LaneEnd(run, lane.path, is_inside=lane.owner is not None)

    def __enter__(self) -> None:
        self._token = None if self._run is None else _run.set(self._run)
        run = active_run()
        is_bare = run is not None and not trace.get_current_span().get_span_context().is_valid
        self._context_token = otel_context.attach(run.context) if run is not None and is_bare else None

    def __exit__(self, *exc_info: object) -> None:
        run = active_run()
        if run is not None and self.ends_lane:
            guard.guarded("the end of a lane", run.end_lane, current_lane(run.root_lane))
        if self._context_token is not None:
            otel_context.detach(self._context_token)
        if self._token is not None:
            _run.reset(self._token)


def root_lane_of_active_run() -> Lane | None:
    """The active run's root lane, or None."""
    run = active_run()
    return None if run is None else run.root_lane
