"""Read OTLP requests from their bytes, one span at a time; pure functions.

Parsed as a whole, a request of 64 MiB may take ten times as much memory: protobuf needs some 60 bytes for an empty
span that is two bytes on the wire. Here only the current span is parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from spanreplay.model import attributes as names
from spanreplay.recording.otlp.otlp import FiledSpan, decode_attributes

__all__ = [
    "LENGTH_DELIMITED",
    "RESOURCE_SPANS",
    "SCOPE_SPANS",
    "SPANS",
    "Field",
    "FiledBytes",
    "iter_filed",
    "iter_spans",
    "make_header",
    "walk",
]

# Fields of ExportTraceServiceRequest, ResourceSpans and ScopeSpans.
RESOURCE_SPANS: Final = 1
SCOPE_SPANS: Final = 2
SPANS: Final = 2

# Wire types, https://protobuf.dev/programming-guides/encoding/#structure
_VARINT: Final = 0
_FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2
_GROUP_START: Final = 3
_GROUP_END: Final = 4
_FIXED32: Final = 5

_TAG_BYTES_MAX: Final = 5
_TAG_MAX: Final = 2**32 - 1
_SIZE_MAX: Final = 2**31 - 1
_VARINT_BYTES_MAX: Final = 10
_GROUPS_DEPTH_MAX: Final = 100
"""Nesting limit of protobuf itself."""


class Field(NamedTuple):
    """A field of a message, from `begin` to `end` including its tag; its content starts at `start`."""

    number: int
    kind: int
    begin: int
    start: int
    end: int


@dataclass(frozen=True)
class FiledBytes:
    """A span with its resource and scope, which are parsed once and contain no spans."""

    resource: ResourceSpans
    scope: ScopeSpans
    span: Span


def iter_filed(payload: bytes) -> Iterator[FiledBytes]:
    """Yield every span of a serialised ExportTraceServiceRequest, one in memory at a time. Raises: DecodeError."""
    for number, kind, _, start, end in walk(payload, 0, len(payload)):
        if number == RESOURCE_SPANS and kind == LENGTH_DELIMITED:
            yield from _iter_resource(payload, start, end)


def iter_spans(payload: bytes) -> Iterator[FiledSpan]:
    """Like `iter_filed`, with decoded resource attributes and the run id. Raises: DecodeError."""
    resource: ResourceSpans | None = None
    attributes: Mapping[str, Any] = {}
    for each in iter_filed(payload):
        if each.resource is not resource:
            resource = each.resource
            attributes = decode_attributes(resource.resource.attributes)
        run_id = next((a.value.string_value for a in each.span.attributes if a.key == names.RUN_ID), "")
        yield FiledSpan(each.span, attributes, each.scope.scope.name, run_id or str(attributes.get(names.RUN_ID, "")))


def _iter_resource(payload: bytes, start: int, end: int) -> Iterator[FiledBytes]:
    resource = ResourceSpans.FromString(_surroundings(payload, start, end, SCOPE_SPANS))
    for number, kind, _, scope_start, scope_end in walk(payload, start, end):
        if number == SCOPE_SPANS and kind == LENGTH_DELIMITED:
            scope = ScopeSpans.FromString(_surroundings(payload, scope_start, scope_end, SPANS))
            for inner, inner_kind, _, span_start, span_end in walk(payload, scope_start, scope_end):
                if inner == SPANS and inner_kind == LENGTH_DELIMITED:
                    yield FiledBytes(resource, scope, Span.FromString(payload[span_start:span_end]))


def _surroundings(payload: bytes, start: int, end: int, number: int) -> bytes:
    """Return a message without its fields of one number; the parser merges fields that appear twice."""
    kept = bytearray()
    at = start
    for field in walk(payload, start, end):
        if field.number == number and field.kind == LENGTH_DELIMITED:
            kept += payload[at : field.begin]
            at = field.end
    kept += payload[at:end]
    return bytes(kept)


def walk(payload: bytes, at: int, end: int) -> Iterator[Field]:
    """Yield the fields of a message that lies between two offsets; a group is one field. Raises: DecodeError."""
    while at < end:
        begin = at
        tag = payload[at]
        if tag < 0x80:
            at += 1
        else:
            tag, at = _read_varint(payload, at, end, _TAG_BYTES_MAX)
        kind = tag & 7
        if kind == LENGTH_DELIMITED:
            if at < end and payload[at] < 0x80:
                size = payload[at]
                at += 1
            else:
                size, at = _read_varint(payload, at, end, _TAG_BYTES_MAX)
            start = at
            at += size
            if size > _SIZE_MAX:
                raise DecodeError("a field is longer than protobuf allows")
        else:
            start = at
            at = _skip_group(payload, at, end, tag >> 3) if kind == _GROUP_START else _skip(payload, at, end, kind)
        if at > end or not 8 <= tag <= _TAG_MAX:
            raise DecodeError("a field reaches beyond its message, or has no number")
        yield Field(tag >> 3, kind, begin, start, at)


def _skip(payload: bytes, at: int, end: int, kind: int) -> int:
    if kind == _VARINT:
        return _read_varint(payload, at, end, _VARINT_BYTES_MAX)[1]
    if kind == _FIXED64:
        return at + 8
    if kind == _FIXED32:
        return at + 4
    if kind == LENGTH_DELIMITED:
        size, at = _read_varint(payload, at, end, _TAG_BYTES_MAX)
        return at + size
    raise DecodeError(f"protobuf has no field of kind {kind} here")


def _skip_group(payload: bytes, at: int, end: int, number: int) -> int:
    groups = [number]
    while groups:
        tag, at = _read_varint(payload, at, end, _TAG_BYTES_MAX)
        kind = tag & 7
        if kind == _GROUP_START:
            groups.append(tag >> 3)
            if len(groups) > _GROUPS_DEPTH_MAX:
                raise DecodeError("groups are nested too deeply")
        elif kind == _GROUP_END:
            if groups.pop() != tag >> 3:
                raise DecodeError("a group ends that did not begin")
        else:
            at = _skip(payload, at, end, kind)
        if at > end:
            raise DecodeError("a group reaches beyond its message")
    return at


def _read_varint(payload: bytes, at: int, end: int, bytes_max: int) -> tuple[int, int]:
    number = 0
    for place in range(bytes_max):
        if at >= end:
            break
        byte = payload[at]
        at += 1
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at
    raise DecodeError("a number is cut off, or longer than protobuf allows")


def make_header(number: int, size: int) -> bytes:
    """Encode the tag and length that precede the content of a length-delimited field."""
    return _make_varint(number << 3 | LENGTH_DELIMITED) + _make_varint(size)


def _make_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
