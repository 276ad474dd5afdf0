"""OpenInference's spans in a spool, in a form in which two runs of one program can be compared."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanreplay import attributes as names
from spanreplay.otlp import decode_attributes
from spanreplay.spool import iter_frames

_OPAQUE: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # UUIDs that a library makes for itself
    r"|\b0x[0-9a-f]+|\b[0-9a-f]{16,}\b"
    r"|run_id[\\\": ]+\w+"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?"
)

_BODIES: Final = frozenset({"TOOL", "RETRIEVER"})
"""What frameworks call inside of these kinds of spans is a call's body; their spans know no parents but their own."""


@dataclass(frozen=True)
class _Found:
    span: Span
    scope: str


def read_openinference_spans(data_dir: Path) -> dict[str, Counter[str]]:
    """By run: each span as text (scope, name, status, attributes, ids masked), and how often.

    Spans inside of a call's body are left out: a replay that serves the call does not run its body.
    """
    runs: dict[str, dict[bytes, _Found]] = {}
    for path in sorted((data_dir / "spool").glob("*.spool")):
        for payload in iter_frames(path):
            for resource_spans in ExportTraceServiceRequest.FromString(payload).resource_spans:
                run_id = str(decode_attributes(resource_spans.resource.attributes).get(names.RUN_ID, ""))
                for scope_spans in resource_spans.scope_spans:
                    for span in scope_spans.spans:
                        runs.setdefault(run_id, {})[span.span_id] = _Found(span, scope_spans.scope.name)
    return {run_id: _count(spans) for run_id, spans in runs.items()}


def _count(spans: dict[bytes, _Found]) -> Counter[str]:
    return Counter(
        _describe(found)
        for found in spans.values()
        if found.scope.startswith("openinference.") and not _is_inside_call(found, spans)
    )


def _is_inside_call(found: _Found, spans: dict[bytes, _Found]) -> bool:
    above = spans.get(found.span.parent_span_id)
    while above is not None:
        attributes = decode_attributes(above.span.attributes)
        if above.scope == names.SCOPE and attributes.get(names.KIND) != "run":
            return True
        if above.scope != names.SCOPE and attributes.get("openinference.span.kind") in _BODIES:
            return True
        above = spans.get(above.span.parent_span_id)
    return False


def _describe(found: _Found) -> str:
    attributes: dict[str, Any] = dict(sorted(decode_attributes(found.span.attributes).items()))
    text = json.dumps([found.scope, found.span.name, found.span.status.code, attributes], default=repr)
    return _OPAQUE.sub("·", text)
