"""Decode OTLP protobuf spans to records; decode and encode attribute values; pure functions.

Imported lazily: protobuf takes tens of milliseconds, which a process that records nothing never pays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanreplay.model import attributes as names
from spanreplay.model.call import CallRecord, Outcome, Recording, RootRecord
from spanreplay.model.errors import DamagedRecording, NewerSchema, RunNotFound
from spanreplay.model.how_to_install import install_command
from spanreplay.recording.root_record import read_object, root_of


def decode_value(value: AnyValue) -> Any:
    """One OTLP value as plain Python; an unset value is None."""
    which = value.WhichOneof("value")
    if which is None:
        return None
    if which == "array_value":
        return [decode_value(v) for v in value.array_value.values]
    if which == "kvlist_value":
        return decode_attributes(value.kvlist_value.values)
    return getattr(value, which)


def decode_attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """OTLP key-values as a dict; the last of duplicate keys wins."""
    decoded: dict[str, Any] = {}
    for pair in pairs:
        value = pair.value
        which = value.WhichOneof("value")  # most values are texts and numbers: decoded inline
        if which == "string_value":
            decoded[pair.key] = value.string_value
        elif which == "int_value":
            decoded[pair.key] = value.int_value
        else:
            decoded[pair.key] = decode_value(value)
    return decoded


def encode_value(value: Any) -> AnyValue:
    """Plain Python as one OTLP value. Raises: TypeError for anything else."""
    if value is None:
        return AnyValue()
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, bytes):
        return AnyValue(bytes_value=value)
    result = AnyValue()
    if isinstance(value, Mapping):
        result.kvlist_value.SetInParent()
        result.kvlist_value.values.extend(encode_attributes(value))
        return result
    if isinstance(value, (list, tuple)):
        result.array_value.SetInParent()
        result.array_value.values.extend(encode_value(v) for v in value)
        return result
    raise TypeError(f"not an OTLP value: {type(value).__name__}")


def encode_attributes(pairs: Mapping[str, Any]) -> list[KeyValue]:
    """A dict as OTLP key-values."""
    return [KeyValue(key=k, value=encode_value(v)) for k, v in pairs.items()]


@dataclass(frozen=True)
class FiledSpan:
    """A span with its batch's resource and scope; `run_id` is empty if neither span nor resource names a run."""

    span: Span
    resource: Mapping[str, Any]
    scope: str
    run_id: str


def iter_spans(request: ExportTraceServiceRequest) -> Iterator[FiledSpan]:
    """Every span of a request with its resource and run; lazy."""
    for resource_spans in request.resource_spans:
        resource = decode_attributes(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                run_id = next((a.value.string_value for a in span.attributes if a.key == names.RUN_ID), "")
                yield FiledSpan(span, resource, scope_spans.scope.name, run_id or str(resource.get(names.RUN_ID, "")))


def is_boundary(attributes: Mapping[str, Any]) -> bool:
    """Whether these are the attributes of a boundary span or a root span of ours."""
    return names.KIND in attributes and names.SCHEMA in attributes


def check_schema(attributes: Mapping[str, Any]) -> None:
    """Refuse a record with a newer schema. Raises: NewerSchema."""
    schema = str(attributes.get(names.SCHEMA, names.SCHEMA_VERSION))
    if not schema.isdecimal() or int(schema) > int(names.SCHEMA_VERSION):
        raise NewerSchema(
            f"the recording has schema {schema!r}, this spanreplay reads up to {names.SCHEMA_VERSION}",
            hint=f"upgrade spanreplay: {install_command()}",
        )


def read_call(span: Span, attributes: Mapping[str, Any]) -> CallRecord:
    """A boundary span as a call. Raises: NewerSchema, DamagedRecording."""
    check_schema(attributes)
    get = attributes.get
    return CallRecord.assemble(
        run_id=str(get(names.RUN_ID, "")),
        seq=int(get(names.SEQ, 0)),
        kind=str(get(names.KIND, "")),
        name=str(get(names.NAME, "")),
        lane=str(get(names.LANE, "")),
        index=int(get(names.INDEX, 0)),
        key=str(get(names.KEY, "")),
        keyspec=str(get(names.KEYSPEC, "")),
        digests=str(get(names.DIGESTS, "")),
        request=str(get(names.REQUEST, "")),
        response=str(get(names.RESPONSE, "")),
        outcome=str(get(names.OUTCOME, Outcome.OPEN.value)),
        effect=str(get(names.EFFECT, "read")),
        end_seq=int(get(names.END_SEQ, -1)),
        parent=int(get(names.PARENT, -1)),
        call_id=str(get(names.CALL_ID, "")),
        code=str(get(names.CODE, "")),
        meta=read_object(get(names.META), names.META),
        redactions=read_object(get(names.REDACTIONS), names.REDACTIONS),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        reads=str(get(names.READS, "")),
        joint=int(get(names.JOINT, -1)),
        clocks=_clocks(get(names.CLOCKS)),
    )


def _clocks(text: object) -> tuple[int, ...]:
    if not text:
        return ()
    try:
        return tuple(int(n) for n in json.loads(str(text)))
    except (ValueError, TypeError) as exc:
        raise DamagedRecording(f"{names.CLOCKS} is not a list of numbers") from exc


def read_root(span: Span, attributes: Mapping[str, Any]) -> RootRecord:
    """The root span of a run as a record. Raises: NewerSchema, DamagedRecording."""
    check_schema(attributes)
    return root_of(
        attributes,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
    )


class RecordingBuilder:
    """Assembles one run from requests and calls; the final record of each span wins.

    `run_id` selects one run among several; leave it empty if there is only one.
    """

    def __init__(self, run_id: str = "") -> None:
        self._run_id = run_id
        self._calls: dict[str, CallRecord] = {}
        self._root: RootRecord | None = None

    def add_request(self, request: ExportTraceServiceRequest) -> None:
        """Add the boundary spans of a request. Raises: NewerSchema, DamagedRecording."""
        for resource_spans in request.resource_spans:
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    self._add_span(span, resource_spans.resource.attributes)

    def _add_span(self, span: Span, resource: Iterable[KeyValue]) -> None:
        attributes = decode_attributes(span.attributes)
        if not is_boundary(attributes):
            return
        if self._run_id:
            run_id = attributes.get(names.RUN_ID) or decode_attributes(resource).get(names.RUN_ID, "")
            if run_id != self._run_id:
                return
        if attributes[names.KIND] != names.KIND_RUN:
            self._keep(read_call(span, attributes))
            return
        found = read_root(span, attributes)
        # The first final record stays, as with calls: a later one is another run's, or forged.
        if self._root is None or not self._root.manifest:
            self._root = found

    def add_call(self, call: CallRecord) -> None:
        """Add one call, if it belongs to the run."""
        if not self._run_id or call.run_id == self._run_id:
            self._keep(call)

    def _keep(self, call: CallRecord) -> None:
        seen = self._calls.get(call.span_id)
        if seen is None or seen.outcome == Outcome.OPEN.value:
            self._calls[call.span_id] = call

    def build(self) -> Recording:
        """All calls in start order. Raises: RunNotFound if there is no boundary span of the run."""
        if self._root is None and not self._calls:
            raise RunNotFound(f"no recorded calls of run {self._run_id or '(any)'} here")
        ordered = tuple(sorted(self._calls.values(), key=lambda c: c.seq))
        return Recording(self._root or RootRecord(run_id=self._run_id or ordered[0].run_id), ordered)


def build_recording(requests: Iterable[ExportTraceServiceRequest], run_id: str = "") -> Recording:
    """All boundary spans of one run, in start order; the final record of each span wins.

    `run_id` selects one run if the requests hold several; leave it empty if there is only one.
    Raises: RunNotFound if there is no boundary span of that run; NewerSchema; DamagedRecording.
    """
    builder = RecordingBuilder(run_id)
    for request in requests:
        builder.add_request(request)
    return builder.build()
