"""Builds the OpenTelemetry span that readers see for a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from spanreplay.model import attributes as names
from spanreplay.model.call import CallRecord, Kind, Outcome
from spanreplay.model.json_text import dump
from spanreplay.model.version import VERSION
from spanreplay.recording.seal.tree import hash_leaf

SCOPE = InstrumentationScope(names.SCOPE, VERSION)

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
"""Name of a retriever call that is a reranking model."""

_TOOL_KINDS: Final = frozenset({Kind.TOOL.value, Kind.MCP.value})

_NO_RESOURCE: Final = Resource.get_empty()

_STATUS_OK = Status(StatusCode.UNSET)

_STATUS_ERROR = Status(StatusCode.ERROR)


def make_span(
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
        instrumentation_scope=SCOPE,
    )


def build_span(
    call: CallRecord, *, is_shown: bool, is_parent_remote: bool, resource: Resource = _NO_RESOURCE
) -> ReadableSpan:
    """Build the span of a call; `is_shown`: an OpenInference span around it already shows the call."""
    trace_id = int(call.trace_id, 16)
    context = SpanContext(trace_id, int(call.span_id, 16), is_remote=False, trace_flags=_SAMPLED)
    parent = SpanContext(trace_id, int(call.parent_span_id, 16), is_remote=is_parent_remote, trace_flags=_SAMPLED)
    leaf = "" if call.outcome == _OPEN else hash_leaf(call)
    return make_span(
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
    """The few OpenInference attributes that classify the span; the collector derives the messages."""
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
