"""Calls to boundary spans: the only place that emits spans of ours.

A boundary span is built as a finished `ReadableSpan` and handed to the processors, instead of being started on a
tracer: the SDK's limits (128 attributes, value length) would evict or cut payloads, and its attribute checks cost
more than the whole record. While a call runs, a non-recording span with its ids is current, so that children nest.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from spanreplay import attributes as names
from spanreplay import guard
from spanreplay._json import dump
from spanreplay._version import VERSION
from spanreplay.call import CallRecord, Kind, Outcome
from spanreplay.seal.tree import hash_leaf

if TYPE_CHECKING:
    from spanreplay.spool.processor import CallSink

_SCOPE = InstrumentationScope(names.SCOPE, VERSION)
# Constants, because `.value` of an enum member is a Python call
_OPEN, _ERROR = Outcome.OPEN.value, Outcome.ERROR.value
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
OPENINFERENCE_KIND: Final = "openinference.span.kind"
OPENINFERENCE_KINDS: Final[Mapping[str, str]] = {
    Kind.LLM.value: "LLM",
    Kind.EMBEDDING.value: "EMBEDDING",
    Kind.TOOL.value: "TOOL",
    Kind.MCP.value: "TOOL",
    Kind.RETRIEVER.value: "RETRIEVER",
}
_RERANK: Final = "rerank"
"""The name of a retriever that is a model which orders documents."""
_TOOL_KINDS: Final = frozenset({Kind.TOOL.value, Kind.MCP.value})
_NO_RESOURCE: Final = Resource.get_empty()
_STATUS_OK = Status(StatusCode.UNSET)
_STATUS_ERROR = Status(StatusCode.ERROR)


class Emitter:
    """Hands finished spans to span processors; never raises."""

    def __init__(self, processors: Sequence[SpanProcessor], resource: Resource) -> None:
        self._processors = tuple(processors)
        self._resource = resource
        self._lock = threading.RLock()
        self._dropped = 0
        self._only = processors[0] if len(processors) == 1 else None

    def find_sink(self, run_id: str) -> CallSink | None:
        """Where the run's calls may go as compact records; None where somebody wants spans."""
        sink: CallSink | None = getattr(self._only, "call_sink", None)
        if sink is not None and sink.owner is not self:
            redact = getattr(self._only, "redact_resource", None)
            try:
                sink.adopt(self, run_id, self._resource if redact is None else redact(self._resource), _SCOPE)
            except Exception as exc:  # noqa: BLE001 -- spans are built then, and fail or are redacted one by one
                guard.report_failure("the spool's context", exc)
                self._only = None
                return None
        return sink

    @property
    def dropped(self) -> int:
        """Records that did not reach the spool: failures here plus what the processors dropped."""
        return self._dropped + sum(int(getattr(p, "dropped", 0)) for p in self._processors)

    def emit(
        self,
        *,
        name: str,
        span_context: SpanContext,
        parent: SpanContext | None,
        attributes: Mapping[str, Any],
        start_ns: int,
        end_ns: int,
        is_error: bool = False,
    ) -> None:
        """Emit one finished span."""
        self._hand_on(
            _make_span(
                name,
                span_context,
                parent,
                attributes,
                start_ns=start_ns,
                end_ns=end_ns,
                is_error=is_error,
                resource=self._resource,
            )
        )

    def emit_call(self, record: CallRecord, *, is_shown: bool, is_parent_remote: bool) -> str:
        """Emit one call as a span and give its leaf ('' while it is open, and where nobody takes spans)."""
        if not self._processors:
            return ""
        span = build_span(record, is_shown=is_shown, is_parent_remote=is_parent_remote, resource=self._resource)
        self._hand_on(span)
        return str((span.attributes or {}).get(names.LEAF, ""))

    def _hand_on(self, span: ReadableSpan) -> None:
        for processor in self._processors:
            try:
                processor.on_end(span)
            except Exception as exc:  # noqa: BLE001 -- a processor's failure is not the agent's
                with self._lock:
                    self._dropped += 1
                guard.report_failure("span processor", exc)


def _make_span(
    name: str,
    context: SpanContext,
    parent: SpanContext | None,
    attributes: Mapping[str, Any],
    *,
    start_ns: int,
    end_ns: int,
    is_error: bool,
    resource: Resource,
) -> ReadableSpan:
    return ReadableSpan(
        name=name,
        context=context,
        parent=parent,
        resource=resource,
        attributes=attributes,
        kind=SpanKind.INTERNAL,
        status=_STATUS_ERROR if is_error else _STATUS_OK,
        start_time=start_ns,
        end_time=end_ns,
        instrumentation_scope=_SCOPE,
    )


def build_span(
    call: CallRecord, *, is_shown: bool, is_parent_remote: bool, resource: Resource = _NO_RESOURCE
) -> ReadableSpan:
    """A call as the span that readers see; `is_shown` says whether an OpenInference span around it shows it."""
    trace_id = int(call.trace_id, 16)
    context = SpanContext(trace_id, int(call.span_id, 16), is_remote=False, trace_flags=_SAMPLED)
    parent = SpanContext(trace_id, int(call.parent_span_id, 16), is_remote=is_parent_remote, trace_flags=_SAMPLED)
    leaf = "" if call.outcome == _OPEN else hash_leaf(call)
    return _make_span(
        call.name,
        context,
        parent,
        build_attributes(call, leaf, _openinference(call, is_shown=is_shown)),
        start_ns=call.start_ns,
        end_ns=call.end_ns,
        is_error=call.outcome == _ERROR,
        resource=resource,
    )


def _openinference(record: CallRecord, *, is_shown: bool) -> dict[str, Any]:
    """The few OpenInference attributes that say what the span is; the collector derives the messages."""
    if is_shown:
        return {OPENINFERENCE_KIND: "CHAIN"}
    attributes: dict[str, Any] = {OPENINFERENCE_KIND: OPENINFERENCE_KINDS.get(record.kind, "CHAIN")}
    if record.name == _RERANK:
        attributes[OPENINFERENCE_KIND] = "RERANKER"
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


def build_attributes(call: CallRecord, leaf: str, openinference: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a boundary span; OpenInference's first, ours last."""
    attributes: dict[str, Any] = dict(openinference)
    attributes.update(
        {
            names.SCHEMA: names.SCHEMA_VERSION,
            names.RUN_ID: call.run_id,
            names.SEQ: call.seq,
            names.KIND: call.kind,
            names.NAME: call.name,
            names.EFFECT: call.effect,
            names.LANE: call.lane,
            names.INDEX: call.index,
            names.KEY: str(call.key),
            names.KEYSPEC: call.keyspec,
            names.REQUEST: call.request,
            names.OUTCOME: call.outcome,
        }
    )
    if call.outcome != _OPEN:
        attributes[names.RESPONSE] = call.response
        attributes[names.END_SEQ] = call.end_seq
        attributes[names.LEAF] = leaf
        if call.joint >= 0:
            attributes[names.JOINT] = call.joint
        if call.clocks:
            attributes[names.CLOCKS] = dump(call.clocks)
    if call.digests:
        attributes[names.DIGESTS] = call.digests
    if call.reads:
        attributes[names.READS] = call.reads
    if call.parent >= 0:
        attributes[names.PARENT] = call.parent
    if call.call_id:
        attributes[names.CALL_ID] = call.call_id
    if call.code:
        attributes[names.CODE] = call.code
    if call.meta:
        attributes[names.META] = dump(dict(sorted(call.meta.items())))
    if call.redactions:
        attributes[names.REDACTIONS] = dump(dict(sorted(call.redactions.items())))
    return attributes
