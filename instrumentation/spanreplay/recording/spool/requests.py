"""Inspects one payload of the spool; pure. protobuf is imported when first needed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from spanreplay.model.errors import DamagedRecording
from spanreplay.recording.spool.frames import damaged_at

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from spanreplay.recording.otlp.otlp import RecordingBuilder
    from spanreplay.recording.spool.frames import Record

__all__ = ["add_record", "count_spans", "parse_payload", "run_ids_in", "runs_of_record", "select_run"]

# KeyValue{key: "spanreplay.run_id", value: AnyValue{string_value: 32 hex}} as protobuf bytes. Searching for
# it costs a hundredth of parsing. Text that merely contains it gives a candidate, which parsing then rules out.
_RUN_ID_FIELD: Final = re.compile(rb"\x0a\x11spanreplay\.run_id\x12\x22\x0a\x20([0-9a-f]{32})")


def run_ids_in(payload: bytes) -> set[str]:
    """The runs that a payload names, without parsing it."""
    return {found.decode() for found in _RUN_ID_FIELD.findall(payload)}


def runs_of_record(record: Record) -> set[str]:
    """The runs that a record names, without parsing it."""
    return run_ids_in(record.payload) if record.context is None else {record.context.run_id}


def add_record(builder: RecordingBuilder, record: Record, name: str) -> None:
    """Give a record's calls to a builder; errors call its file `name`.

    Raises: DamagedRecording, NewerSchema.
    """
    if record.context is None:
        builder.add_request(parse_payload(record.payload, name))
        return
    from spanreplay.recording.spool.compact import decode_call

    try:
        call, _ = decode_call(record.payload)
    except ValueError as exc:
        raise damaged_at(name, record.start, str(exc)) from exc
    builder.add_call(call)


def parse_payload(payload: bytes, name: str) -> ExportTraceServiceRequest:
    """Parse a payload; the error calls its file `name`. Raises: DamagedRecording."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    try:
        return ExportTraceServiceRequest.FromString(payload)
    except DecodeError as exc:
        raise DamagedRecording(
            f"{name} holds a record of {len(payload)} bytes that is not an OTLP request",
            hint="the file was written by something else; delete it or restore it from a copy",
        ) from exc


def count_spans(request: ExportTraceServiceRequest) -> int:
    """Number of spans in a request."""
    return sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans)


def select_run(payload: bytes, run_id: str, *, default_run: str, name: str) -> bytes:
    """The part of a payload that belongs to a run: the same bytes if all of it does, otherwise empty or rebuilt.

    `default_run` is the run of spans that name none. Raises: DamagedRecording.
    """
    named = run_ids_in(payload)
    if not named and default_run != run_id:
        return b""
    if named and named != {run_id} and run_id not in named and default_run != run_id:
        return b""
    from spanreplay.recording.otlp.otlp import iter_spans

    request = parse_payload(payload, name)
    is_wanted = [(filed.run_id or default_run) == run_id for filed in iter_spans(request)]
    if all(is_wanted):
        return payload if is_wanted else b""
    if not any(is_wanted):
        return b""
    wanted = iter(is_wanted)
    for resource_spans in request.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            kept = [span for span in scope_spans.spans if next(wanted)]
            del scope_spans.spans[:]
            scope_spans.spans.extend(kept)
        filled = [s for s in resource_spans.scope_spans if s.spans]
        del resource_spans.scope_spans[:]
        resource_spans.scope_spans.extend(filled)
    filled_resources = [r for r in request.resource_spans if r.scope_spans]
    del request.resource_spans[:]
    request.resource_spans.extend(filled_resources)
    return request.SerializeToString()
