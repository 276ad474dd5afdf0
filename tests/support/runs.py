"""Recorded runs for tests, as records and as the OTLP payloads that hold them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanreplay.model import attributes as names
from spanreplay.model.call import CallRecord, Recording, RootRecord
from spanreplay.recording.otlp import otlp

START_NS = 1_790_000_000_000_000_000
TRACE_ID = "5b" * 16


def make_run_id(number: int = 0) -> str:
    """Return a UUIDv7 of a fixed day; runs with close numbers differ only in their last characters."""
    return f"019f{'0' * 8}7000{'8'}{number:015x}"


def make_call(run_id: str, seq: int, **changes: Any) -> CallRecord:
    """Return one finished call; every third is an LLM call."""
    is_llm = seq % 3 == 1
    values: dict[str, Any] = {
        "run_id": run_id,
        "seq": seq,
        "end_seq": seq + 1,
        "kind": "llm" if is_llm else "tool",
        "name": "openai.chat.completions" if is_llm else "get_order",
        "effect": "read",
        "lane": "main",
        "index": seq // 3,
        "key": f"{seq:064x}",
        "keyspec": "llm/1" if is_llm else "tool/1",
        "request": json.dumps({"method": "POST", "body": {"n": seq, "text": "größer “x”"}}),
        "response": json.dumps({"value": seq}),
        "outcome": "ok",
        "code": "agent.py:31 run",
        "meta": {"model": "gpt-5", "tokens_in": 10, "tokens_out": 2} if is_llm else {},
        "redactions": {"email": 1} if seq % 5 == 0 else {},
        "trace_id": TRACE_ID,
        "span_id": f"{seq + 1:016x}",
        "parent_span_id": f"{2**60:016x}",
        "start_ns": START_NS + seq * 1_000_000,
        "end_ns": START_NS + seq * 1_000_000 + 500_000,
    }
    return CallRecord(**{**values, **changes})


def make_recording(run_id: str | None = None, calls: int = 4, **root: Any) -> Recording:
    """Return a complete run of some calls."""
    run_id = run_id or make_run_id()
    values: dict[str, Any] = {
        "run_id": run_id,
        "app": "refunds",
        "trace_id": TRACE_ID,
        "span_id": f"{2**60:016x}",
        "start_ns": START_NS,
        "end_ns": START_NS + 9_000_000_000,
        "outcome": "ok",
        "env": {"python": "3.11.7"},
        "manifest": {"calls": calls},
        "user_id": "u-7",
        "session_id": "s-1",
    }
    return Recording(RootRecord(**{**values, **root}), tuple(make_call(run_id, seq) for seq in range(1, calls + 1)))


def _call_attributes(call: CallRecord) -> dict[str, Any]:
    result: dict[str, Any] = {
        names.SCHEMA: names.SCHEMA_VERSION,
        names.RUN_ID: call.run_id,
        names.SEQ: call.seq,
        names.END_SEQ: call.end_seq,
        names.KIND: call.kind,
        names.NAME: call.name,
        names.EFFECT: call.effect,
        names.LANE: call.lane,
        names.INDEX: call.index,
        names.KEY: call.key,
        names.KEYSPEC: call.keyspec,
        names.REQUEST: call.request,
        names.RESPONSE: call.response,
        names.OUTCOME: call.outcome,
        names.CODE: call.code,
    }
    if call.parent >= 0:
        result[names.PARENT] = call.parent
    if call.call_id:
        result[names.CALL_ID] = call.call_id
    if call.meta:
        result[names.META] = json.dumps(dict(call.meta))
    if call.redactions:
        result[names.REDACTIONS] = json.dumps(dict(call.redactions))
    return result


def _root_attributes(root: RootRecord) -> dict[str, Any]:
    optional = {
        names.ENV: json.dumps(dict(root.env)) if root.env else "",
        names.MANIFEST: json.dumps(dict(root.manifest)) if root.manifest else "",
        names.APP: root.app,
        names.REPLAY_OF: root.replay_of,
        names.USER_ID: root.user_id,
        names.SESSION_ID: root.session_id,
    }
    return {
        names.SCHEMA: names.SCHEMA_VERSION,
        names.RUN_ID: root.run_id,
        names.KIND: names.KIND_RUN,
        names.NAME: root.app,
        names.OUTCOME: root.outcome,
        **{k: v for k, v in optional.items() if v},
    }


def _make_span(record: CallRecord | RootRecord, name: str, attributes: dict[str, Any]) -> Span:
    parent = record.parent_span_id if isinstance(record, CallRecord) else ""
    return Span(
        trace_id=bytes.fromhex(record.trace_id),
        span_id=bytes.fromhex(record.span_id),
        parent_span_id=bytes.fromhex(parent),
        name=name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=record.start_ns,
        end_time_unix_nano=record.end_ns,
        attributes=otlp.encode_attributes(attributes),
    )


def make_request(recording: Recording) -> ExportTraceServiceRequest:
    """Return a recording as one OTLP export request, with its root span last, as recorders send it."""
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.extend(
        otlp.encode_attributes(
            {
                "service.name": recording.root.app,
                names.RUN_ID: recording.run_id,
                names.PROJECT: recording.root.app,
            }
        )
    )
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = names.SCOPE
    scope_spans.spans.extend(_make_span(c, c.name, _call_attributes(c)) for c in recording.calls)
    root = recording.root
    scope_spans.spans.append(_make_span(root, root.app, _root_attributes(root)))
    return request


def make_payload(recording: Recording) -> bytes:
    """Return a recording as a serialised OTLP export request."""
    return make_request(recording).SerializeToString()


def iter_attributes(request: ExportTraceServiceRequest) -> Iterator[Any]:
    """Yield every attribute of a request's resources and spans."""
    for batch in request.resource_spans:
        yield from batch.resource.attributes
        for scope in batch.scope_spans:
            for span in scope.spans:
                yield from span.attributes
