"""Merge recorded requests into one: each resource and scope once, and no `open` record beside its final one; pure.

The spool holds a whole ExportTraceServiceRequest for each span, so that any of them can be lost without the others.
On the wire they travel together. Works on the bytes: spans are moved, never decoded or re-encoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from spanreplay.model import attributes as names
from spanreplay.model.call import Outcome

__all__ = ["merge_requests"]

# Fields of ExportTraceServiceRequest, ResourceSpans, ScopeSpans and Span.
_RESOURCE_SPANS: Final = 1
_SCOPE_SPANS: Final = 2
_SPANS: Final = 2
_TRACE_ID, _SPAN_ID, _ATTRIBUTES = 1, 2, 9
_FIXED: Final = {1: 8, 5: 4}

_KEY: Final = names.OUTCOME.encode()
_OPEN: Final = Outcome.OPEN.value.encode()
# KeyValue{key: "spanreplay.outcome", value: AnyValue{string_value: "open"}}
_OPEN_PAIR: Final = bytes((0x0A, len(_KEY), *_KEY, 0x12, len(_OPEN) + 2, 0x0A, len(_OPEN), *_OPEN))

_Field = tuple[int, int, int, int]
"""number, start of the field, start of its content, end"""


def merge_requests(payloads: Sequence[bytes]) -> bytes:
    """One request with the spans of these; if one is not laid out like ours, all are concatenated, also valid OTLP.

    An `open` record is left out if the final record of its span, or a later open one, is in the same batch.
    """
    try:
        return _merge(payloads)
    except (IndexError, ValueError):
        return b"".join(payloads)


def _merge(payloads: Sequence[bytes]) -> bytes:
    resources: dict[bytes, dict[bytes, list[bytes]]] = {}
    open_at: dict[bytes, tuple[list[bytes], int]] = {}
    ended: set[bytes] = set()
    for payload in payloads:
        for resource, scope, whole, body in _iter_spans(payload):
            spans = resources.setdefault(resource, {}).setdefault(scope, [])
            ids = _read_ids(body)
            if not _is_open(body):
                ended.add(ids)
            elif ids in ended:
                continue
            before = open_at.pop(ids, None)
            if before is not None:
                before[0][before[1]] = b""
            if ids not in ended:
                open_at[ids] = (spans, len(spans))
            spans.append(whole)
    parts = []
    for resource, scopes in resources.items():
        filled = [(scope, b"".join(spans)) for scope, spans in scopes.items() if any(spans)]
        inner = b"".join(_field(_SCOPE_SPANS, scope + spans) for scope, spans in filled)
        if inner:
            parts.append(_field(_RESOURCE_SPANS, resource + inner))
    return b"".join(parts)


def _iter_spans(payload: bytes) -> Iterator[tuple[bytes, bytes, bytes, bytes]]:
    """For each span: the bytes of its resource, of its scope, of the span as a field, and of the span alone."""
    for number, _, start, end in _walk(payload, 0, len(payload)):
        if number != _RESOURCE_SPANS:
            raise ValueError
        resource, scoped = _split(payload, start, end, _SCOPE_SPANS)
        for _, _, scope_start, scope_end in scoped:
            scope, spans = _split(payload, scope_start, scope_end, _SPANS)
            for _, begin, span_start, span_end in spans:
                yield resource, scope, payload[begin:span_end], payload[span_start:span_end]


def _split(payload: bytes, start: int, end: int, number: int) -> tuple[bytes, list[_Field]]:
    """The bytes of all other fields, and the fields with this number."""
    others, found = [], []
    for field in _walk(payload, start, end):
        if field[0] == number:
            found.append(field)
        else:
            others.append(payload[field[1] : field[3]])
    return b"".join(others), found


def _read_ids(span: bytes) -> bytes:
    ids = b""
    for number, _, start, end in _walk(span, 0, len(span)):
        if number not in (_TRACE_ID, _SPAN_ID):
            break  # our spans begin with the ids
        ids += span[start:end]
    if len(ids) != 24:
        raise ValueError
    return ids


def _is_open(span: bytes) -> bool:
    # The same bytes may occur inside a text: only a whole field counts.
    return _OPEN_PAIR in span and any(
        number == _ATTRIBUTES and span[start:end] == _OPEN_PAIR for number, _, start, end in _walk(span, 0, len(span))
    )


def _walk(data: bytes, at: int, end: int) -> Iterator[_Field]:
    """Every field of a message. Raises: ValueError or IndexError if it is not one."""
    while at < end:
        begin = at
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 2:
            size, at = _varint(data, at)
        elif kind == 0:
            _, after = _varint(data, at)
            size = after - at
        else:
            size = _FIXED.get(kind, end)  # a group (obsolete) reaches beyond the end: an error
        if at + size > end:
            raise ValueError
        yield tag >> 3, begin, at, at + size
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError


def _field(number: int, body: bytes) -> bytes:
    size = len(body)
    head = bytearray((number << 3 | 2,))
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + body
