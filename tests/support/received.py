"""Describes the data a collector received so that two runs of a program can be compared, without ids and times."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanreplay.recording.otlp.otlp import decode_attributes
from support.otlp_sink import Seen

_OPAQUE: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{16,}\b|\b0x[0-9a-f]+"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*"
)
_OF_THE_PROCESS: Final = frozenset({"process.pid", "process.parent_pid", "process.creation.time", "thread.id"})
_SPAN_TYPE: Final = "logfire.span_type"
_PENDING: Final = "pending_span"
"""Logfire's placeholder for a span, which it omits if the span ends before the next batch is sent."""


def describe_traces(seen: Iterable[Seen]) -> list[list[str]]:
    """Return every trace as the sorted descriptions of its spans, in an order independent of ids."""
    traces: dict[bytes, dict[bytes, tuple[Span, dict[str, Any]]]] = {}
    for request in seen:
        for resource_spans in ExportTraceServiceRequest.FromString(request.body).resource_spans:
            resource = decode_attributes(resource_spans.resource.attributes)
            for scope_spans in resource_spans.scope_spans:
                scope = scope_spans.scope
                around = {"path": request.path, "resource": _known(resource), "scope": [scope.name, scope.version]}
                for span in scope_spans.spans:
                    if decode_attributes(span.attributes).get(_SPAN_TYPE) == _PENDING:
                        continue
                    traces.setdefault(span.trace_id, {})[span.span_id] = (span, around)
    return sorted(
        sorted(_describe(span, around, spans) for span, around in spans.values()) for spans in traces.values()
    )


def names_of(seen: Iterable[Seen]) -> list[str]:
    """Return the names of all spans, sorted."""
    requests = [ExportTraceServiceRequest.FromString(request.body) for request in seen]
    return sorted(
        span.name for r in requests for rs in r.resource_spans for scope in rs.scope_spans for span in scope.spans
    )


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: attributes[name] for name in sorted(attributes.keys() - _OF_THE_PROCESS)}


def _describe(span: Span, around: Mapping[str, Any], spans: Mapping[bytes, tuple[Span, Any]]) -> str:
    above, parent = [], span.parent_span_id
    while parent:
        above.append(spans[parent][0].name if parent in spans else "not received")
        parent = spans[parent][0].parent_span_id if parent in spans else b""
    described = {
        **around,
        "name": span.name,
        "above": above,
        "kind": span.kind,
        "flags": span.flags,
        "state": span.trace_state,
        "status": [span.status.code, span.status.message],
        "attributes": _known(decode_attributes(span.attributes)),
        "events": [[event.name, _known(decode_attributes(event.attributes))] for event in span.events],
        "links": [_known(decode_attributes(link.attributes)) for link in span.links],
    }
    return _OPAQUE.sub("·", json.dumps(described, default=repr, ensure_ascii=False))
