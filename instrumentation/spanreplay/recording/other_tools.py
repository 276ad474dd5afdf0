"""Rebuild runs from spans that other tools export: JSON of Phoenix, of Langfuse, and plain OTLP.

The `spanreplay.*` attributes make a span replayable: a run can be rebuilt if the tool kept them whole. If the tool
truncated a value, the run is refused, never imported in part, and the error names the value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import attributes as names
from spanreplay.model.errors import DamagedRecording, ForeignFile
from spanreplay.recording.spool.limits import BUNDLE_BYTES_MAX

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["read_tool_json"]

SPANS_MAX: Final = 1_000_000
NAMED_MAX: Final = 20
_HINT: Final = "it must be spans as JSON: of Phoenix (/v1/projects/P/spans), of Langfuse (observations), or OTLP"
_ERROR_WORDS: Final = ("ERROR", 2)


@dataclass
class _Span:
    """One span, independent of any tool's format; `end_ns` is 0 if it has no end."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    is_error: bool
    attributes: dict[str, Any]
    resource: dict[str, Any] = field(default_factory=dict)
    scope: str = names.SCOPE


def read_tool_json(data: bytes, *, name: str = "the file") -> dict[str, list[bytes]]:
    """Run id → payloads of every run in a tool's JSON; spans that belong to no run are left out.

    Raises: ForeignFile if it is not such JSON or holds no run; DamagedRecording, which names the truncated spans.
    """
    if len(data) > BUNDLE_BYTES_MAX:
        raise ForeignFile(f"{name} has {len(data)} bytes, limit {BUNDLE_BYTES_MAX}", hint=_HINT)
    try:
        spans = [span for tree in _documents(data) for span in _read_spans(tree)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise ForeignFile(f"{name} is not JSON of spans ({type(exc).__name__})", hint=_HINT) from exc
    if len(spans) > SPANS_MAX:
        raise ForeignFile(f"{name} has {len(spans)} spans, limit {SPANS_MAX}", hint="export fewer traces")
    _check_whole(spans, name)
    runs: dict[str, list[bytes]] = {}
    run_of_trace = {s.trace_id: str(s.attributes[names.RUN_ID]) for s in spans if names.RUN_ID in s.attributes}
    for span in sorted(spans, key=lambda s: (s.start_ns, s.attributes.get(names.SEQ, 0))):
        run_id = run_of_trace.get(span.trace_id)
        if run_id:
            span.resource.setdefault(names.RUN_ID, run_id)
            runs.setdefault(run_id, []).append(_to_request(span).SerializeToString(deterministic=True))
    if not runs:
        raise ForeignFile(
            f"{name} holds {len(spans)} spans, and none has {names.RUN_ID}: they were not recorded by spanreplay",
            hint="only recorded runs can be replayed",
        )
    return runs


def _documents(data: bytes) -> Iterable[Any]:
    """Parse one JSON document, or one per line."""
    try:
        return [json.loads(data)]
    except ValueError:
        return [json.loads(line) for line in data.splitlines() if line.strip()]


def _read_spans(tree: Any) -> list[_Span]:
    if isinstance(tree, dict) and ("resourceSpans" in tree or "resource_spans" in tree):
        return _read_otlp(tree)
    if isinstance(tree, dict) and isinstance(tree.get("observations"), list):
        tree = tree["observations"]  # one trace of Langfuse
    items = tree.get("data", tree) if isinstance(tree, dict) else tree
    if isinstance(items, dict):
        items = [items]
    return [_read_span(item) for item in items]


def _read_span(item: Mapping[str, Any]) -> _Span:
    if "traceId" in item and "metadata" in item:
        return _read_langfuse(item)
    if "context" in item:
        return _read_phoenix(item)
    if "startTimeUnixNano" in item or "start_time_unix_nano" in item:
        return _read_otlp({"resourceSpans": [{"scopeSpans": [{"spans": [item]}]}]})[0]
    raise ValueError("a span of an unknown tool")


def _read_phoenix(item: Mapping[str, Any]) -> _Span:
    context = item["context"]
    return _Span(
        trace_id=context["trace_id"],
        span_id=context["span_id"],
        parent_id=item.get("parent_id") or "",
        name=item["name"],
        start_ns=_nanoseconds(item["start_time"]),
        end_ns=_nanoseconds(item.get("end_time")),
        is_error=item.get("status_code") in _ERROR_WORDS,
        attributes=_flatten(item.get("attributes") or {}),
    )


def _read_langfuse(item: Mapping[str, Any]) -> _Span:
    metadata = _object(item["metadata"])
    scope = _object(metadata.get("scope"))
    return _Span(
        trace_id=item["traceId"],
        span_id=item["id"],
        parent_id=item.get("parentObservationId") or "",
        name=item.get("name") or "",
        start_ns=_nanoseconds(item["startTime"]),
        end_ns=_nanoseconds(item.get("endTime")),
        is_error=item.get("level") in _ERROR_WORDS,
        attributes={key: _number(value) for key, value in _object(metadata.get("attributes")).items()},
        resource={key: _number(value) for key, value in _object(metadata.get("resourceAttributes")).items()},
        scope=str(scope.get("name") or names.SCOPE),
    )


def _read_otlp(tree: dict[str, Any]) -> list[_Span]:
    from spanreplay.recording.otlp.otlp import decode_attributes
    from spanreplay.recording.otlp.otlp_json import read_request

    return [
        _Span(
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            name=span.name,
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            is_error=span.status.code in _ERROR_WORDS,
            attributes=decode_attributes(span.attributes),
            resource=decode_attributes(batch.resource.attributes),
            scope=scope.scope.name or names.SCOPE,
        )
        for batch in read_request(tree).resource_spans
        for scope in batch.scope_spans
        for span in scope.spans
    ]


def _to_request(span: _Span) -> ExportTraceServiceRequest:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.trace.v1.trace_pb2 import Status

    from spanreplay.recording.otlp.otlp import encode_attributes

    request = ExportTraceServiceRequest()
    batch = request.resource_spans.add()
    batch.resource.attributes.extend(encode_attributes(span.resource))
    scope = batch.scope_spans.add()
    is_ours = names.SCHEMA in span.attributes
    scope.scope.name = names.SCOPE if is_ours else span.scope
    rebuilt = scope.spans.add(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_id),
        name=span.name,
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns or span.start_ns,
    )
    if span.is_error:
        rebuilt.status.code = Status.STATUS_CODE_ERROR
    rebuilt.attributes.extend(encode_attributes(span.attributes))
    return request


def _check_whole(spans: Iterable[_Span], name: str) -> None:
    """Raise DamagedRecording, listing each value with its span, if the tool truncated any."""
    cut = [
        f"span {span.span_id} ({span.name}): {key} of {len(value)} characters"
        for span in spans
        for key in (names.REQUEST, names.RESPONSE, names.ENV, names.MANIFEST, names.META, names.READS)
        if isinstance(value := span.attributes.get(key), str) and value and not _is_json(value)
    ]
    if cut:
        listed = "; ".join(cut[:NAMED_MAX]) + (f"; and {len(cut) - NAMED_MAX} more" if len(cut) > NAMED_MAX else "")
        raise DamagedRecording(
            f"{name} does not hold the run whole, {len(cut)} values were cut: {listed}",
            hint="take the run from where it was recorded: spanreplay export RUN",
        )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Attributes by dotted name; some tools nest them at the dots."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _object(value: Any) -> dict[str, Any]:
    """A JSON object; some versions of the tool give it as text."""
    found = json.loads(value) if isinstance(value, str) else value
    return dict(found) if isinstance(found, dict) else {}


def _number(value: Any) -> Any:
    """Decode an int of 0, which Langfuse keeps as the JSON of its OTLP value."""
    if isinstance(value, str) and value.startswith('{"intValue":'):
        number = json.loads(value)["intValue"]
        return int(number) if isinstance(number, (int, str)) else 0
    return value


def _nanoseconds(text: Any) -> int:
    """An ISO 8601 time as nanoseconds since the epoch; tools keep microseconds or milliseconds."""
    if not text:
        return 0
    moment = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    since = moment.astimezone(timezone.utc) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000
