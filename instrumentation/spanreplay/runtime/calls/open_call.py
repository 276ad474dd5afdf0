"""One call crossing a boundary: opened, resolved against the recording if there is one, closed, recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import Token
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanContext

from spanreplay.model import config, guard, ids
from spanreplay.model.call import BIRTHS, CallRecord, Effect, Kind, Outcome
from spanreplay.model.errors import ConfigError, ReplayMiss
from spanreplay.model.function_keys import LEAF_KEYSPECS, derive_key, is_derivable, leaf_key_fields
from spanreplay.model.keys import Key, compute_key
from spanreplay.recording.sampling.own_cpu import METER, measured
from spanreplay.recording.seal.tree import describe_constant
from spanreplay.runtime.calls import printed
from spanreplay.runtime.calls.compact_call import encode_call
from spanreplay.runtime.calls.sealed import seal_hidden
from spanreplay.runtime.calls.spec import Revealed, Spec
from spanreplay.runtime.calls.trace_place import enter_span, find_place, is_suppressed, leave_span, make_span_context
from spanreplay.runtime.context_variables import holding
from spanreplay.runtime.lanes import (
    CrossingTokens,
    Lane,
    current_crossing,
    current_place,
    enter_crossing,
    is_plumbing_here,
    leave_crossing,
)
from spanreplay.runtime.run import Run, active_run

if TYPE_CHECKING:
    from spanreplay.runtime.answers import Answers

__all__ = ["Crossing", "begin", "begin_in", "is_plumbing", "is_suppressed", "no_plumbing", "open_crossing", "plumbing"]

# Constants, because `.value` of an enum member is a Python call
_MCP, _OPEN, _HUMAN = Kind.MCP.value, Outcome.OPEN.value, Kind.HUMAN.value
_EFFECTS_WRITTEN_FIRST = frozenset({Effect.WRITE.value, Effect.IRREVERSIBLE.value})


def plumbing() -> AbstractContextManager[None]:
    """A block whose calls, and those of tasks started in it, carry another boundary's traffic: not recorded."""
    return holding(is_plumbing_here, True)


def no_plumbing() -> AbstractContextManager[None]:
    """A block of the program's own work that inherited the context of traffic which triggered it."""
    return holding(is_plumbing_here, False)


def is_plumbing(run: Run) -> bool:
    """Whether a transport call made here belongs to a boundary above it (an MCP session's HTTP)."""
    if is_plumbing_here.get():
        return True
    crossing = current_crossing(run.root_lane)
    return crossing is not None and crossing.spec.kind == _MCP


class Crossing:
    """One call in flight. Open it with `open_crossing`; close it with `close` (only the first counts)."""

    __slots__ = (
        "_closing_thread",
        "_constant",
        "_context_token",
        "_digests",
        "_key",
        "_lane_tokens",
        "births",
        "body_lane",
        "boundary",
        "clocks",
        "code",
        "hidden_sent",
        "index",
        "is_key_implied",
        "is_live_by_plan",
        "is_reused",
        "is_shown",
        "joint",
        "lane",
        "number",
        "on_abandon",
        "opened_in",
        "paired",
        "parent",
        "parent_context",
        "reads",
        "request_bytes",
        "revealed",
        "run",
        "seq",
        "served",
        "span_id",
        "spec",
        "start_ns",
    )

    def __init__(self, run: Run, spec: Spec) -> None:
        self.run = run
        self.spec = spec
        self.lane, self.parent = lane, _ = current_place(run.root_lane)
        self.boundary = boundary = f"{spec.kind}:{spec.name}"
        """Kind and name: `tool:delete_accounts`."""
        births = lane.tell_births(run.clock)
        self.births = births if run.resolver.keeps else ()
        """Of the first call of a lane: when the lane was made; see `Lane.births`. () in a replay."""
        self.index = lane.next_index(boundary)
        self.body_lane = None if spec.body is None else Lane(f"{lane.path}/in:{boundary}#{self.index}")
        """The lane under which what the function of a tool reads itself is kept; None for other calls."""
        self.reads = "" if run.reads is None else run.reads.flush(lane)
        self.start_ns = ids.now_ns()
        self.parent_context, self.is_shown = find_place(run, spec.kind, spec.name)
        self.span_id = ids.new_span_id()
        # The frames of `begin_in`, its caller and those above are ours
        self.code = ids.find_caller(5) or ids.describe_function(spec.body)
        self._describe_key()
        self.hidden_sent = sum(spec.redactions.values()) if spec.redactions else 0
        """How often something was redacted in the request."""
        self.request_bytes: bytes | None = None
        self.served: CallRecord | None = None
        """The recorded call to serve instead of going live; None means live."""
        self.paired: CallRecord | None = None
        """In a replay, the recorded call that this one stands for."""
        self.revealed: Revealed | None = None
        """The response in `served` without the values that it hides; None if it is served as recorded."""
        self.number = 0
        """In a replay, the number of the recorded call that this one stands for, else its own place among the calls."""
        self.is_live_by_plan = self.is_reused = False  # reused: `served` is the answer of an earlier run
        self.joint = -1
        self.opened_in = -1
        """The callback of the event loop in which a coroutine's call began; -1 if unknown."""
        self.clocks: list[int] = []
        self.on_abandon: Callable[[], None] | None = None
        """Ends the record of a stream that nobody read to its end."""
        self._closing_thread = 0
        """The thread that has ended the call; 0 before that."""
        self._context_token: Token[Any] | None = None
        self._lane_tokens: CrossingTokens | None = None
        self.seq = run.open_call(self)  # last: from now on other threads may end it
        if run.loops is not None:
            run.loops.begin(lambda: self.seq)

    def _describe_key(self) -> None:
        """Make the key now, unless the request implies it. Raises: Unserializable."""
        spec = self.spec
        self._constant: bytes | None = None
        self._digests: str | None = None
        fields = spec.key_fields
        self.is_key_implied = fields is None or is_derivable(spec.keyspec, spec.request)
        self._key = None
        if fields is not None and not self.is_key_implied:
            self._key = compute_key(spec.keyspec, fields, self.run.key_memo)

    @property
    def key_fields(self) -> Mapping[str, Any]:
        """The fields that make up the key."""
        spec = self.spec
        if spec.key_fields is None:
            return leaf_key_fields(spec.keyspec, spec.name, json.loads(spec.request)["arguments"])
        return spec.key_fields

    @property
    def answers(self) -> Answers:
        """The replay that serves this call. Raises: AssertionError if there is none."""
        return self.run.resolver.answers

    def find_file(self, path: str) -> str:
        """The path now of a recorded file."""
        return path if self.served is None or self.is_reused else self.answers.relocation.find_file(path)

    @property
    def span_context(self) -> SpanContext:
        """The call's own span; its parent's is `parent_context`."""
        return make_span_context(self.parent_context, self.span_id)

    @property
    def key(self) -> Key:
        """The key of the request; made on first use if the request implies it."""
        key = self._key
        if key is None:
            spec, recorded = self.spec, self._find_recorded()
            if recorded is not None:
                key = Key(recorded.key)
            else:
                key = derive_key(spec.keyspec, spec.name, spec.request, self.run.key_memo)
            self._key = key
        return key

    @property
    def key_hex(self) -> str:
        """The key as text; not computed in a replay that follows the recording."""
        recorded = self._find_recorded() if self._key is None else None
        return self.key.hex if recorded is None else recorded.key

    def _find_recorded(self) -> CallRecord | None:
        """The recorded call in this one's place, if it has the same request (which implies the key)."""
        spec, recorded = self.spec, self.run.resolver.find_recorded(self)
        if recorded is None or recorded.request != spec.request or recorded.keyspec != spec.keyspec:
            return None
        self._digests = recorded.digests
        return recorded

    def __enter__(self) -> Crossing:
        self._context_token = enter_span(self.run, self.span_context)
        self._lane_tokens = enter_crossing(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        # Cleared immediately: together they would form a cycle, which only the garbage collector frees
        tokens, self._lane_tokens = self._lane_tokens, None
        token, self._context_token = self._context_token, None
        if tokens is not None:
            leave_crossing(self, tokens)
        if token is not None:
            leave_span(token)

    def to_record(self, outcome: str, response: str = "", end_seq: int = -1, end_ns: int = 0) -> CallRecord:
        """This call as a record, in the given state."""
        spec = self.spec
        return CallRecord.assemble(
            run_id=self.run.run_id,
            seq=self.seq,
            kind=spec.kind,
            name=spec.name,
            lane=self.lane.path,
            index=self.index,
            key=self.key_hex,
            keyspec=spec.keyspec,
            digests=self.describe_digests(),
            request=spec.request,
            response=response,
            outcome=outcome,
            effect=spec.effect,
            end_seq=end_seq,
            parent=self.parent.seq if self.parent is not None else -1,
            call_id=spec.call_id,
            code=self.code,
            meta=self.meta,
            redactions=spec.redactions,
            trace_id=f"{self.parent_context.trace_id:032x}",
            span_id=f"{self.span_id:016x}",
            parent_span_id=f"{self.parent_context.span_id:016x}",
            start_ns=self.start_ns,
            end_ns=end_ns,
            reads=self.reads,
            joint=self.joint,
            clocks=self.parts,
        )

    @property
    def meta(self) -> dict[str, Any]:
        """What is recorded of the call besides its request and response."""
        return {**self.spec.meta, BIRTHS: list(self.births)} if self.births else self.spec.meta

    @property
    def parts(self) -> tuple[int, ...]:
        """When each part of a stream came; in a replay, the recorded values."""
        return tuple(self.clocks) if self.served is None else self.served.clocks

    def note_opened(self) -> None:
        """Note that a coroutine's call begins or asks for its next part, to tell if it completes synchronously."""
        if self.run.loops is not None:
            self.opened_in = self.run.loops.now()

    def mark(self) -> None:
        """Note that a part of a stream has come."""
        self.clocks.append(self.run.complete(self.opened_in)[0])

    def mark_printed(self) -> int:
        """Note that a coroutine has begun to print; return the milliseconds since it was called."""
        self.clocks.append(self.run.complete(self.opened_in)[0])
        return (ids.now_ns() - self.start_ns) // 1_000_000

    def amend(self, patches: Any) -> bool:
        """Apply a plan's patches to the request; return whether that changes the key. Raises: ConfigError."""
        if self.spec.amend is None:
            raise ConfigError(f"the request of {self.boundary} can't be changed by a plan: set its response")
        before = self.key_hex
        self.spec = self.spec.amend(patches)
        self.request_bytes = None
        self._describe_key()
        return self.key_hex != before

    def restate(self, describe: Callable[[Spec], Spec]) -> bool:
        """Describe the call again; return whether that changes its description."""
        spec = describe(self.spec)
        if spec is self.spec:
            return False
        self.spec = spec
        self.request_bytes = None
        self._describe_key()
        return True

    @measured
    def close(self, outcome: Outcome, response: str, *, is_bounded: bool = False) -> None:
        """Record how the call ended; `response` is redacted JSON text. Later calls do nothing.

        `is_bounded`: the response was limited in bytes already; as JSON text (base64, escapes) it may be longer.
        """
        if self._closing_thread:
            return
        self._closing_thread = get_ident()
        if self.spec.printed is not None:
            guard.guarded("what a call printed", printed.keep, self)
        if self.served is None:
            if self.spec.raw is not None or self.spec.raw_printed is not None:
                guard.guarded("sealing what a response hides", seal_hidden, self, response)
            self.run.resolver.settle(self, outcome, response)
        elif self.revealed is not None:
            response = self.revealed.hide(response)
        try:
            self._record(outcome, response, is_bounded=is_bounded)
        except Exception as exc:  # noqa: BLE001 -- nothing of ours may reach the agent
            guard.report_failure("recording a call", exc)

    def write_open(self, response: str) -> None:
        """Record the items of a stream so far; a later record of this call replaces this one."""
        if not self._closing_thread:
            self._emit(_OPEN, response)

    def leave_out(self) -> None:
        """Record nothing of this call: its run ends."""
        self._closing_thread = get_ident()

    @property
    def is_closing_elsewhere(self) -> bool:
        """Whether another thread is recording the call's end, or has done so."""
        return self._closing_thread not in (0, get_ident())

    @property
    def is_closing(self) -> bool:
        """Whether the call's end is being recorded, or has been."""
        return self._closing_thread != 0

    def abandon(self) -> None:
        """Close a call that nobody ended, when its run ends."""
        if self.on_abandon is not None and not self._closing_thread:
            self.on_abandon()
        self.close(Outcome.OPEN, "")

    def miss(self, miss: ReplayMiss) -> None:
        """Record that the recording had no answer for this call."""
        self._closing_thread = get_ident()
        guard.guarded("recording a miss", self._record, Outcome.ERROR, '{"miss":true}')

    def _record(self, outcome: Outcome, response: str, *, is_bounded: bool = False) -> None:
        spec = self.spec
        if outcome is Outcome.OPEN:
            self.run.closed(self, outcome)
            self._emit(_OPEN)
            return
        if len(response) > config.BODY_BYTES_MAX and not is_bounded:
            self.run.count("truncated")
            response = f'{{"truncated":{len(response)}}}'
        if spec.hole:
            self.run.hole(f"call {self.seq} ({self.boundary}): {spec.hole}")
        end_seq, self.joint = self.run.complete(self.opened_in)
        if self.served is not None and self.run.is_continued:
            end_seq = self._take_over(self.served)
        self._emit(outcome.value, response, end_seq)
        self.run.closed(self, outcome)

    def describe_digests(self) -> str:
        """The digests of the request's parts, as the record holds them; '' for a function call."""
        if self.spec.keyspec in LEAF_KEYSPECS:  # they would need the key now, which costs too much (decision 0008)
            return ""
        key = self.key  # first: if it is the recorded one, so are the digests
        digests = self._digests
        if digests is None:
            digests = self._digests = str(self.run.digester.describe(key, self.key_fields))
        return digests

    def _take_over(self, served: CallRecord) -> int:
        """Make a served call part of the resumed run, with its recorded numbers; return its completion."""
        self.joint, self.reads = served.joint, served.reads
        return served.end_seq

    def _emit(self, outcome: str, response: str = "", end_seq: int = -1) -> None:
        """Write the call in the given state; as open if the run has ended before the call did."""
        run, emitter = self.run, self.run.emitter
        end_ns = self.start_ns if outcome == _OPEN else self._end_ns()
        sink = emitter.find_sink(run.run_id)
        if sink is not None:
            try:
                payload = encode_call(self, self._describe_constant(), outcome, end_seq, end_ns, response)
            except UnicodeEncodeError:
                pass  # a lone surrogate: the span states it in its own way
            else:
                if payload:
                    sink.write(payload)
                else:
                    self._emit(_OPEN)
                return
        record, is_remote = self.to_record(outcome, response, end_seq, end_ns), self.parent_context.is_remote
        count = partial(run.leaves.add, self.seq)
        if not emitter.emit_call(record, count, is_shown=self.is_shown, is_parent_remote=is_remote):
            self._emit(_OPEN)

    def _describe_constant(self) -> bytes:
        """The `describe_constant` line of this call's record, cached if it can recur."""
        spec = self.spec
        clocks = self.parts if self.served is not None or self.clocks else ()
        is_common = self.is_key_implied and not (spec.call_id or spec.meta or spec.redactions or clocks or self.births)
        known = self._constant
        if is_common and known is not None:
            return known
        token = (spec.kind, spec.name, spec.effect, spec.keyspec, self.lane.path, self.code)
        known = self.run.constants.get(token) if is_common else None
        if known is None:
            key = "" if self.is_key_implied else self.key.hex
            line = describe_constant(self.run.run_id, *token, spec.call_id, key, self.meta, spec.redactions, clocks)
            known = f"{line}\n".encode("ascii")
            if is_common and len(self.run.constants) < config.CONSTANTS_MAX:
                self.run.constants[token] = known
        self._constant = known if is_common else None
        return known

    def _end_ns(self) -> int:
        """Now, also if the clock was set back meanwhile; in a resumed run, the start plus the recorded duration."""
        if self.served is not None and self.run.is_continued:
            return self.start_ns + max(0, self.served.end_ns - self.served.start_ns)
        return max(ids.now_ns(), self.start_ns)

    def announce(self) -> None:
        """Write a started record first, so that a crash inside a side effect or a wait for a human is visible."""
        if self.served is not None or self._closing_thread:
            return
        try:
            self._emit(_OPEN)
        except Exception as exc:  # noqa: BLE001 -- nothing of ours may reach the agent
            guard.report_failure("started record", exc)


def open_crossing(run: Run, spec: Spec) -> Crossing:
    """Register a call with its run and, in a replay, resolve it.

    Raises: ReplayMiss if this is a replay and the recording has no answer; never goes live by itself.
    """
    crossing = Crossing(run, spec)
    try:
        run.resolver.resolve(crossing)
    except ReplayMiss as miss:
        crossing.miss(miss)
        raise
    if spec.effect in _EFFECTS_WRITTEN_FIRST or spec.kind == _HUMAN:
        crossing.announce()
    return crossing


def begin(build: Any, *args: Any, is_for_model: bool = False, is_http: bool = False) -> Crossing | None:
    """Open a call described by `build(run, *args)`; None when nothing is to be recorded.

    Suppression keeps exporters out. An instrumentor that suppresses others (Logfire) does so around calls of models,
    and no exporter calls a model.

    Our own failure is counted and gives None while recording; in a replay it raises ReplayMiss, because going on would
    go live.
    """
    run = active_run()
    return (
        None if run is None or (is_suppressed() and not is_for_model) else begin_in(run, build, *args, is_http=is_http)
    )


def begin_in(run: Run, build: Any, *args: Any, is_http: bool = False) -> Crossing | None:
    """`begin`, if it is already known that calls are recorded here."""
    if not run.resolver.admits_call(is_http=is_http):
        return None
    begun = METER.enter() if METER.is_on else -1
    try:
        return open_crossing(run, build(run, *args))
    except Exception as exc:  # noqa: BLE001 -- nothing of ours may reach the agent
        run.resolver.fail(exc)
        return None
    finally:
        METER.leave(begun)
