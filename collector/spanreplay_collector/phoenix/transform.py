"""Convert a recorded span to the form that Phoenix shows; pure functions.

Phoenix drops resources, scopes and links, keeps the first write of a span, files a whole trace under the
project of the span that arrives first, and cannot store NUL or bytes.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanreplay.model import attributes as names
from spanreplay.model.call import Outcome
from spanreplay.recording.otlp.otlp import FiledSpan, encode_value
from spanreplay_collector import limits
from spanreplay_collector.phoenix.boundary import derive_attributes

SPAN_KIND: Final = "openinference.span.kind"
INPUT: Final = "input.value"
OUTPUT: Final = "output.value"
METADATA: Final = "metadata"
_MIME_OF: Final = {INPUT: "input.mime_type", OUTPUT: "output.mime_type"}
RESOURCE_ATTRIBUTES: Final = (
    "service.name",
    "service.version",
    "service.namespace",
    "service.instance.id",
    "deployment.environment",
    "deployment.environment.name",
    "host.name",
    "k8s.namespace.name",
    "k8s.pod.name",
    "telemetry.sdk.language",
    names.RUN_ID,
)
"""Attributes copied from the resource, because Phoenix drops it."""
DEFAULT_PROJECT: Final = "default"
REPLAYS_SUFFIX: Final = "-replays"


@dataclass(frozen=True)
class Preview:
    """A run's input and output, for the root span that Phoenix lists."""

    asked: str = ""
    answered: str = ""


def read_text(span: Span, key: str) -> str:
    """A string attribute, or ""."""
    return next((a.value.string_value for a in span.attributes if a.key == key), "")


def is_open_record(span: Span) -> bool:
    """Whether this record only marks a span's start: Phoenix would keep it instead of the final record."""
    return read_text(span, names.OUTCOME) == Outcome.OPEN.value


def is_run_root(span: Span) -> bool:
    """Whether this is the root span of a spanreplay run."""
    return read_text(span, names.KIND) == names.KIND_RUN


def name_project(filed: FiledSpan) -> str:
    """The project that this span names, or "" if only its trace's root can name it."""
    span = filed.span
    if is_run_root(span):
        app = read_text(span, names.APP) or name_fallback_project(filed.resource)
        return app + REPLAYS_SUFFIX if read_text(span, names.REPLAY_OF) else app
    if not filed.run_id and not span.parent_span_id:  # the root of a trace without a run
        return name_fallback_project(filed.resource)
    return ""


def name_fallback_project(resource: Mapping[str, Any]) -> str:
    """The project of a trace whose root does not arrive."""
    for key in (names.PROJECT, names.APP, "service.name"):
        value = resource.get(key)
        if isinstance(value, str) and value.strip("\0 "):
            return value.replace("\0", "")
    return DEFAULT_PROJECT


def present_span(filed: FiledSpan, preview: Preview) -> Span:
    """Return a copy of the span as it is sent to Phoenix."""
    span = Span()
    span.CopyFrom(filed.span)
    note = _describe_source(filed.run_id)
    span.name = _shorten(span.name, note)
    span.status.message = _shorten(span.status.message, note)
    del span.links[:]
    derived = derive_attributes(filed.span.attributes)
    span.attributes.extend(KeyValue(key=key, value=value) for key, value in derived.items())
    shown = _present_attributes(span.attributes, note)
    for event in span.events:
        event.name = _shorten(event.name, note)
        _replace(event.attributes, _present_attributes(event.attributes, note))
    for key in RESOURCE_ATTRIBUTES:
        value = filed.resource.get(key)
        if key not in shown and isinstance(value, (str, int, float)):
            shown[key] = _present_value(encode_value(value), note)
    if is_run_root(filed.span):
        _complete_root(shown, filed, preview)
    _replace(span.attributes, shown)
    return span


def build_request(project: str, spans: Iterable[tuple[str, Span]]) -> ExportTraceServiceRequest:
    """Build one request for one project from (scope name, span) pairs."""
    request = ExportTraceServiceRequest()
    batch = request.resource_spans.add()
    batch.resource.attributes.append(KeyValue(key=names.PROJECT, value=AnyValue(string_value=project)))
    scopes: dict[str, Any] = {}
    for scope, span in spans:
        if scope not in scopes:
            scopes[scope] = batch.scope_spans.add()
            scopes[scope].scope.name = scope.replace("\0", "")
        scopes[scope].spans.append(span)
    return request


def _describe_source(run_id: str) -> str:
    return f"whole text: spanreplay show {run_id}" if run_id else "the whole text is in the store"


def _present_attributes(pairs: Iterable[KeyValue], note: str) -> dict[str, AnyValue]:
    shown: dict[str, AnyValue] = {}
    for pair in pairs:
        if pair.value.WhichOneof("value") is None:
            continue
        value = _present_value(pair.value, note)
        shown[pair.key.replace("\0", "")] = value
    for key, mime in _MIME_OF.items():
        if key in shown and mime in shown and shown[key].string_value.endswith(f"{note}]"):
            shown[mime] = AnyValue(string_value="text/plain")  # truncated JSON is not JSON
    return shown


def _present_value(value: AnyValue, note: str) -> AnyValue:
    which = value.WhichOneof("value")
    if which == "string_value":
        return AnyValue(string_value=_shorten(value.string_value, note))
    if which == "bytes_value":
        text = base64.b64encode(value.bytes_value).decode("ascii")
        return AnyValue(string_value=_shorten(text, note))
    if which == "double_value" and not math.isfinite(value.double_value):
        return AnyValue(string_value=str(value.double_value))  # JSON has no such numbers
    if which == "array_value":
        result = AnyValue()
        result.array_value.SetInParent()
        result.array_value.values.extend(_present_value(item, note) for item in value.array_value.values)
        return result
    if which == "kvlist_value":
        result = AnyValue()
        result.kvlist_value.SetInParent()
        _replace(result.kvlist_value.values, _present_attributes(value.kvlist_value.values, note))
        return result
    return value


def _shorten(text: str, note: str) -> str:
    if "\0" in text:
        text = text.replace("\0", "")
    if len(text) * 4 <= limits.PHOENIX_TEXT_BYTES_MAX:
        return text
    encoded = text.encode()
    if len(encoded) <= limits.PHOENIX_TEXT_BYTES_MAX:
        return text
    kept = encoded[: limits.PHOENIX_TEXT_BYTES_MAX].decode("utf-8", "ignore")
    return f"{kept}… [cut here, {len(encoded)} bytes in all; {note}]"


def _replace(pairs: Any, shown: Mapping[str, AnyValue]) -> None:
    del pairs[:]
    pairs.extend(KeyValue(key=key, value=value) for key, value in shown.items())


def _read_object(span: Span, key: str) -> dict[str, Any]:
    try:
        value = json.loads(read_text(span, key) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _read_argv(span: Span) -> str:
    argv = _read_object(span, names.ENV).get("argv")
    return " ".join(map(str, argv)) if isinstance(argv, list) else ""


def _read_stdout(span: Span) -> str:
    stdout = _read_object(span, names.MANIFEST).get("stdout")
    return str(stdout.get("text", "")) if isinstance(stdout, dict) else ""


def _complete_root(shown: dict[str, AnyValue], filed: FiledSpan, preview: Preview) -> None:
    def add(key: str, text: str) -> None:
        if text and key not in shown:
            shown[key] = AnyValue(string_value=_shorten(text, _describe_source(filed.run_id)))

    add(SPAN_KIND, "AGENT")
    add(INPUT, preview.asked or _read_argv(filed.span))
    add(OUTPUT, preview.answered or _read_stdout(filed.span))
    metadata = {"run_id": filed.run_id, "app": read_text(filed.span, names.APP)}
    replay_of = read_text(filed.span, names.REPLAY_OF)
    if replay_of:
        metadata["replay_of"] = replay_of
    metadata["replay"] = f"spanreplay replay {replay_of or filed.run_id}"
    add(METADATA, json.dumps(metadata))
