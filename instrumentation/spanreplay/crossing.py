"""One call crossing a boundary: opened, resolved against the recording if there is one, closed, recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from spanreplay import config, guard, ids
from spanreplay.call import CallRecord, Effect, Kind, Outcome
from spanreplay.errors import ConfigError, ReplayMiss
from spanreplay.keys import compute_key
from spanreplay.lanes import Entered, Lane, current_crossing, current_lane, enter_crossing, leave_crossing
from spanreplay.record import build_attributes
from spanreplay.run import Run, active_run
from spanreplay.seal.tree import hash_leaf

_OPENINFERENCE_KIND = "openinference.span.kind"
_OPENINFERENCE_KINDS: Mapping[str, str] = {
    Kind.LLM.value: "LLM",
    Kind.EMBEDDING.value: "EMBEDDING",
    Kind.TOOL.value: "TOOL",
    Kind.MCP.value: "TOOL",
    Kind.RETRIEVER.value: "RETRIEVER",
}
_RERANK = "rerank"
"""The name of a retriever that is a model which orders documents."""
_LANGCHAIN_MODEL_FILES = ("langchain_core/language_models/chat_models.py", "langchain_core/language_models/llms.py")
# Constants, because `.value` of an enum member is a Python call
_OPEN, _ERROR, _MCP = Outcome.OPEN.value, Outcome.ERROR.value, Kind.MCP.value
_HUMAN = Kind.HUMAN.value
_TOOL_KINDS = frozenset({Kind.TOOL.value, Kind.MCP.value})
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_EFFECTS_WRITTEN_FIRST = frozenset({Effect.WRITE.value, Effect.IRREVERSIBLE.value})


@dataclass
class Spec:
    """What is known of a call before it happens. `request` and `key_fields` are redacted already."""

    kind: str
    name: str
    effect: str
    keyspec: str
    key_fields: Mapping[str, Any]
    request: str
    call_id: str = ""
    meta: dict[str, Any] = field(default_factory=dict)
    redactions: dict[str, int] = field(default_factory=dict)
    hole: str = ""
    """Why this call cannot be replayed, where that is known from the start."""
    body: Any = None
    """The function that does the work, named as the place where no agent code is on the stack."""
    amend: Callable[[Any], Spec] | None = None
    """Gives the call with patches applied to its request; None where a request can't be changed on its way."""
    live: Callable[[], Any] | None = None
    """What runs instead of the body, where a patch changed its arguments."""


def is_suppressed() -> bool:
    """Whether instrumentation is switched off here: exporters and our own plumbing."""
    return bool(otel_context.get_value(_SUPPRESS_INSTRUMENTATION_KEY))


_is_plumbing: ContextVar[bool] = ContextVar("spanreplay_plumbing", default=False)


@contextmanager
def plumbing() -> Iterator[None]:
    """A block whose calls, and those of tasks started in it, carry another boundary's traffic: not recorded."""
    token = _is_plumbing.set(True)
    try:
        yield
    finally:
        _is_plumbing.reset(token)


def is_plumbing(run: Run) -> bool:
    """Whether a transport call made here belongs to a boundary above it (an MCP session's HTTP)."""
    if _is_plumbing.get():
        return True
    crossing = current_crossing(run.root_lane)
    return crossing is not None and crossing.spec.kind == _MCP


class Crossing:
    """One call in flight. Open it with `open_crossing`; end it exactly once with `close` (more are ignored)."""

    __slots__ = (
        "_context_token",
        "_entered",
        "_is_closed",
        "boundary",
        "clocks",
        "code",
        "index",
        "is_live_by_plan",
        "is_shown",
        "joint",
        "key",
        "lane",
        "on_abandon",
        "opened_in",
        "paired",
        "parent",
        "parent_context",
        "reads",
        "run",
        "seq",
        "served",
        "span_context",
        "spec",
        "start_ns",
    )

    def __init__(self, run: Run, spec: Spec) -> None:
        self.run = run
        self.spec = spec
        self.lane: Lane = current_lane(run.root_lane)
        self.parent: Crossing | None = current_crossing(run.root_lane)
        self.boundary = f"{spec.kind}:{spec.name}"
        """Kind and name: `tool:delete_accounts`."""
        self.index = self.lane.next_index(self.boundary)
        self.reads = "" if run.reads is None else run.reads.flush(self.lane)
        self.seq = run.tick()
        self.start_ns = ids.now_ns()
        self.is_shown = _is_shown_by_openinference(spec.kind, spec.name)
        self.code = ids.find_caller(3) or ids.describe_function(spec.body)
        self.key = compute_key(spec.keyspec, spec.key_fields, run.key_memo)
        self.parent_context = _parent_span_context(run)
        self.span_context = SpanContext(
            self.parent_context.trace_id,
            ids.new_span_id(),
            is_remote=False,
            trace_flags=_SAMPLED,
        )
        self.served: CallRecord | None = None
        """The recorded call to serve instead of going live; None means live."""
        self.paired: CallRecord | None = None
        """In a replay, the recorded call that this one stands for."""
        self.is_live_by_plan = False
        self.joint = -1
        self.opened_in = -1
        """The turn of the event loop in which a coroutine's call began; -1 where that is not known."""
        self.clocks: list[int] = []
        self.on_abandon: Callable[[], None] | None = None
        """Ends the record of a stream that nobody read to its end."""
        self._is_closed = False
        self._context_token: Token[Any] | None = None
        self._entered: Entered | None = None

    def __enter__(self) -> Crossing:
        context = trace.set_span_in_context(NonRecordingSpan(self.span_context))
        self._context_token = otel_context.attach(context)
        self._entered = enter_crossing(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._entered is not None:
            leave_crossing(self._entered)
        if self._context_token is not None:
            otel_context.detach(self._context_token)

    def to_record(self, outcome: Outcome, response: str = "", end_seq: int = -1) -> CallRecord:
        """This call as a record, in the state given."""
        spec = self.spec
        return CallRecord.assemble(
            run_id=self.run.run_id,
            seq=self.seq,
            kind=spec.kind,
            name=spec.name,
            lane=self.lane.path,
            index=self.index,
            key=self.key.hex,
            keyspec=spec.keyspec,
            digests=self.run.digester.describe(self.key, spec.key_fields),
            request=spec.request,
            response=response,
            outcome=outcome.value,
            effect=spec.effect,
            end_seq=end_seq,
            parent=self.parent.seq if self.parent is not None else -1,
            call_id=spec.call_id,
            code=self.code,
            meta=spec.meta,
            redactions=spec.redactions,
            reads=self.reads,
            joint=self.joint,
            clocks=tuple(self.clocks) if self.served is None else self.served.clocks,
        )

    def mark(self) -> None:
        """A part of a stream has come."""
        self.clocks.append(self.run.complete(is_part=True)[0])

    def amend(self, patches: Any) -> bool:
        """Apply a plan's patches to the request; whether that makes it another one. Raises: ConfigError."""
        if self.spec.amend is None:
            raise ConfigError(f"the request of {self.boundary} can't be changed by a plan: set its response")
        before = self.key.hex
        self.spec = self.spec.amend(patches)
        self.key = compute_key(self.spec.keyspec, self.spec.key_fields, self.run.key_memo)
        return self.key.hex != before

    def close(self, outcome: Outcome, response: str) -> None:
        """Record how the call ended; `response` is redacted JSON text. Later calls do nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.run.session is not None and self.served is None:
            self.run.session.settle_live(self, outcome, response)
        guard.guarded("recording a call", self._record, outcome, response)

    def abandon(self) -> None:
        """Close a call that nobody ended, when its run ends."""
        if self.on_abandon is not None and not self._is_closed:
            self.on_abandon()
        self.close(Outcome.OPEN, "")

    def miss(self, miss: ReplayMiss) -> None:
        """Record that the recording had no answer for this call."""
        self._is_closed = True
        guard.guarded("recording a miss", self._record, Outcome.ERROR, '{"miss":true}')

    def _record(self, outcome: Outcome, response: str) -> None:
        spec = self.spec
        if outcome is Outcome.OPEN:
            self.run.closed(self, "")
            self._emit(self.to_record(outcome), "")
            return
        if len(response) > config.BODY_BYTES_MAX:
            self.run.count("truncated")
            response = f'{{"truncated":{len(response)}}}'
        if spec.hole:
            self.run.hole(f"call {self.seq} ({self.boundary}): {spec.hole}")
        end_seq, self.joint = self.run.complete(self.opened_in)
        record = self.to_record(outcome, response, end_seq)
        if self.served is not None and self.run.is_continued:
            record = self.run.take_over(self.served, record)
        leaf = hash_leaf(record)
        self.run.closed(self, leaf)
        self._emit(record, leaf)

    def _emit(self, record: CallRecord, leaf: str) -> None:
        openinference = _openinference(record, is_shown=self.is_shown)
        self.run.emitter.emit(
            name=self.spec.name,
            span_context=self.span_context,
            parent=self.parent_context,
            attributes=build_attributes(record, leaf, openinference),
            start_ns=self.start_ns,
            end_ns=self.start_ns if record.outcome == _OPEN else self._end_ns(),
            is_error=record.outcome == _ERROR,
        )

    def _end_ns(self) -> int:
        """Now; of a call that becomes part of a resumed run, as long after its start as it took then."""
        if self.served is not None and self.run.is_continued:
            return self.start_ns + max(0, self.served.end_ns - self.served.start_ns)
        return ids.now_ns()

    def announce(self) -> None:
        """Write a started record first, so that a crash inside a side effect or a wait for a human is visible."""
        is_first = self.spec.effect in _EFFECTS_WRITTEN_FIRST or self.spec.kind == _HUMAN
        if is_first and self.served is None:
            guard.guarded("started record", self._emit, self.to_record(Outcome.OPEN), "")


def open_crossing(run: Run, spec: Spec) -> Crossing:
    """Enter a call in the run's books and, in a replay, resolve it.

    Raises: ReplayMiss if this is a replay and the recording has no answer; never goes live by itself.
    """
    crossing = Crossing(run, spec)
    run.opened(crossing)
    if run.session is not None:
        try:
            run.session.resolve(crossing)
        except ReplayMiss as miss:
            crossing.miss(miss)
            raise
    crossing.announce()
    return crossing


def begin(build: Any, *args: Any) -> Crossing | None:
    """Open a call described by `build(run, *args)`; None when nothing is to be recorded.

    Our own failure is counted and gives None while recording; in a replay it raises ReplayMiss, because going on
    would go live.
    """
    run = active_run()
    if run is None or is_suppressed():
        return None
    if run.session is None and run.is_full:
        run.count("dropped")
        return None
    try:
        return open_crossing(run, build(run, *args))
    except Exception as exc:
        if run.session is not None:
            raise run.session.broken(f"spanreplay could not describe a call: {type(exc).__name__}") from exc
        run.count("dropped")
        guard.report_failure("describing a call", exc)
        return None


def _parent_span_context(run: Run) -> SpanContext:
    span_context = trace.get_current_span().get_span_context()
    langchain = _langchain_span()
    if langchain is not None and langchain.get_span_context().is_valid:
        return _deeper(span_context, langchain.get_span_context(), run)
    return span_context if span_context.is_valid else run.span_context


def _deeper(current: SpanContext, langchain: SpanContext, run: Run) -> SpanContext:
    # A current span of our own or of an SDK's instrumentor lies below LangChain's; only the root lies above it
    is_above = not current.is_valid or current.span_id == run.span_context.span_id
    return langchain if is_above else current


def _langchain_span() -> Any:
    """The span of OpenInference's LangChain instrumentor, which is never the current one (callbacks)."""
    module = sys.modules.get("openinference.instrumentation.langchain")
    if module is None:
        return None
    try:
        return module.get_current_span()
    except Exception:  # noqa: BLE001 -- another package's private state
        return None


def _is_shown_by_openinference(kind: str, name: str) -> bool:
    """Whether an OpenInference span around this call shows it already: tokens must not count twice."""
    wanted = _OPENINFERENCE_KINDS.get(kind)
    if wanted is None:
        return False
    attributes = getattr(trace.get_current_span(), "attributes", None)
    if attributes and attributes.get(_OPENINFERENCE_KIND) == wanted:
        return True
    langchain = _langchain_span()
    if langchain is None:
        return False
    # LangChain's spans get their attributes when they end; a tool's span has the tool's name from the start
    return getattr(langchain, "name", None) == name or (wanted == "LLM" and _is_in_langchain_model())


def _is_in_langchain_model(frames_max: int = 60) -> bool:
    frame = sys._getframe(3)
    for _ in range(frames_max):
        if frame.f_code.co_filename.endswith(_LANGCHAIN_MODEL_FILES):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def _openinference(record: CallRecord, *, is_shown: bool) -> dict[str, Any]:
    """The few OpenInference attributes that say what the span is; the collector derives the messages."""
    if is_shown:
        return {_OPENINFERENCE_KIND: "CHAIN"}
    attributes: dict[str, Any] = {_OPENINFERENCE_KIND: _OPENINFERENCE_KINDS.get(record.kind, "CHAIN")}
    if record.name == _RERANK:
        attributes[_OPENINFERENCE_KIND] = "RERANKER"
    meta = record.meta
    for source, target in (
        ("response_model", "llm.model_name"),
        ("tokens_in", "llm.token_count.prompt"),
        ("tokens_out", "llm.token_count.completion"),
    ):
        if meta.get(source):
            attributes[target] = meta[source]
    if record.kind in _TOOL_KINDS:
        attributes["tool.name"] = record.name
    return attributes
