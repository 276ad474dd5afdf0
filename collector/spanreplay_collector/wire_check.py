"""Check in small pieces that bytes are an OTLP request whose spans have valid ids; pure functions.

(1) Neighbouring fields are gathered into a piece. Protobuf reads a message that is cut between two fields as two
    messages to be merged, so the pieces are valid exactly if the whole is.
(2) Each piece is parsed inside all its enclosing messages, so protobuf's own limits apply as for the whole.
(3) A message larger than a piece is itself cut into pieces, at any depth.
(4) A text or bytes larger than a piece are not copied: the text is checked where it lies, an empty one in its place.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay_collector import limits
from spanreplay_collector.wire import LENGTH_DELIMITED, RESOURCE_SPANS, SCOPE_SPANS, SPANS, make_header, walk

__all__ = ["TooManyFields", "WireCheck", "check_wire", "leave_out_invalid"]

_SPAN_PATH: Final = (RESOURCE_SPANS, SCOPE_SPANS, SPANS)
_TRACE_ID, _SPAN_ID, _PARENT_SPAN_ID = 1, 2, 4
_DEPTH_MAX: Final = 100
"""Nesting limit of protobuf for messages."""

_WHOLE: Final = frozenset((FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES))
"""Kinds of a large field that is checked by itself."""
_new_utf8_decoder: Final = codecs.getincrementaldecoder("utf-8")

_Path = tuple[int, ...]
_Bytes = Sequence[bytes | memoryview]


class TooManyFields(ValueError):
    """The request has more than `fields_max` fields."""


@dataclass(frozen=True)
class WireCheck:
    """Result of a check; `payload` is the sender's bytes, without the refused spans if there are any."""

    payload: bytes
    spans: int
    refused_spans: int


class _Piece(NamedTuple):
    """Neighbouring small fields, or one large field whose content starts at `start`: a `message`, text or bytes."""

    begin: int
    end: int
    start: int = -1
    number: int = 0
    message: Descriptor | None = None
    is_text: bool = False


def check_wire(
    body: bytes, piece_bytes_max: int = limits.PARSE_PIECE_BYTES, *, fields_max: float = float("inf")
) -> WireCheck:
    """Check a request and leave out spans with invalid ids. Raises: DecodeError, TooManyFields."""
    check = _Check(body, piece_bytes_max, fields_max)
    kept = check.check_message(ExportTraceServiceRequest.DESCRIPTOR, (), 0, len(body))
    return WireCheck(body if kept is None else b"".join(kept), check.spans, check.refused_spans)


def leave_out_invalid(request: ExportTraceServiceRequest) -> tuple[int, int]:
    """Remove spans with invalid ids; return how many are kept and how many were removed."""
    spans = refused = 0
    for batch in request.resource_spans:
        for scope in batch.scope_spans:
            valid = [span for span in scope.spans if _are_valid(span.trace_id, span.span_id, span.parent_span_id)]
            spans += len(valid)
            if len(valid) < len(scope.spans):
                refused += len(scope.spans) - len(valid)
                del scope.spans[:]
                scope.spans.extend(valid)
    return spans, refused


def _are_valid(trace_id: bytes, span_id: bytes, parent: bytes) -> bool:
    return len(trace_id) == 16 and len(span_id) == 8 and len(parent) in (0, 8) and any(trace_id) and any(span_id)


class _Check:
    def __init__(self, body: bytes, piece_bytes_max: int, fields_max: float) -> None:
        self._body = body
        self._view = memoryview(body)
        self._piece_bytes_max = piece_bytes_max
        self._fields, self._fields_max = 0, fields_max
        self.spans = 0
        self.refused_spans = 0

    def check_message(self, message: Descriptor, path: _Path, start: int, end: int) -> _Bytes | None:
        """Return the message's bytes without refused spans; None if no span is refused. Raises: DecodeError."""
        if len(path) > _DEPTH_MAX:
            raise DecodeError("messages are nested too deeply")
        kept: list[bytes | memoryview] = []
        copied = start
        for piece in self._cut(message, start, end):
            changed = self._check_piece(path, piece)
            if changed is not None:
                kept.append(self._view[copied : piece.begin])
                kept.extend(changed)
                copied = piece.end
        if copied == start:
            return None
        kept.append(self._view[copied:end])
        return kept

    def _cut(self, message: Descriptor, start: int, end: int) -> Iterator[_Piece]:
        """(1) and (3): yield the pieces of a message, in order and without gaps."""
        if end - start <= self._piece_bytes_max:
            yield _Piece(start, end)
            return
        at = start
        for number, kind, begin, content, after in walk(self._body, start, end):
            self._fields += 1
            if self._fields > self._fields_max:
                raise TooManyFields
            is_large = after - begin > self._piece_bytes_max
            if at < begin and (is_large or after - at > self._piece_bytes_max):
                yield _Piece(at, begin)
                at = begin
            if is_large and kind == LENGTH_DELIMITED:
                field = message.fields_by_number.get(number)
                if field is None or field.type in _WHOLE:
                    inner = None if field is None else field.message_type
                    is_text = field is not None and field.type == FieldDescriptor.TYPE_STRING
                    yield _Piece(begin, after, content, number, inner, is_text)
                    at = after
        if at < end:
            yield _Piece(at, end)

    def _check_piece(self, path: _Path, piece: _Piece) -> _Bytes | None:
        if piece.message is None:
            if piece.start < 0:
                return self._check_small(path, piece)
            self._check_content(path, piece)
            return None
        inner_path = (*path, piece.number)
        kept = self.check_message(piece.message, inner_path, piece.start, piece.end)
        if inner_path == _SPAN_PATH:
            return None if self._is_fileable(piece.start, piece.end) else ()
        if kept is None:
            return None
        return [make_header(piece.number, sum(map(len, kept))), *kept]

    def _check_content(self, path: _Path, piece: _Piece) -> None:
        """(4): check a large text or bytes. Raises: DecodeError."""
        ExportTraceServiceRequest.FromString(self._wrap(path, make_header(piece.number, 0)))
        if not piece.is_text:
            return
        decoder = _new_utf8_decoder()
        try:
            for at in range(piece.start, piece.end, self._piece_bytes_max):
                decoder.decode(self._view[at : min(at + self._piece_bytes_max, piece.end)])
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as exc:
            raise DecodeError("a text is not UTF-8") from exc

    def _check_small(self, path: _Path, piece: _Piece) -> _Bytes | None:
        """(2): parse a piece in place; return its bytes without refused spans, or None if no span is refused."""
        request = ExportTraceServiceRequest.FromString(self._surround(path, piece.begin, piece.end))
        if path[: len(_SPAN_PATH)] == _SPAN_PATH:
            return None  # a piece of a span, whose ids may be in another piece
        spans, refused = leave_out_invalid(request)
        self.spans += spans
        self.refused_spans += refused
        if not refused:
            return None
        holder: Message = request
        if path:
            batch = request.resource_spans[0]
            holder = batch if len(path) == 1 else batch.scope_spans[0]
        return [holder.SerializeToString()]

    def _surround(self, path: _Path, begin: int, end: int) -> bytes:
        if not path and end - begin == len(self._body):
            return self._body
        return self._wrap(path, self._view[begin:end])

    @staticmethod
    def _wrap(path: _Path, content: bytes | memoryview) -> bytes:
        """Return fields inside all their enclosing messages."""
        headers: list[bytes] = []
        size = len(content)
        for number in reversed(path):
            headers.append(make_header(number, size))
            size += len(headers[-1])
        return b"".join([*reversed(headers), content])

    def _is_fileable(self, start: int, end: int) -> bool:
        """Whether a span that was checked in pieces has valid ids; if an id appears twice, the last one counts."""
        ids = {_TRACE_ID: b"", _SPAN_ID: b"", _PARENT_SPAN_ID: b""}
        for number, kind, _, content, after in walk(self._body, start, end):
            if number in ids and kind == LENGTH_DELIMITED:
                ids[number] = self._body[content:after]
        is_valid = _are_valid(ids[_TRACE_ID], ids[_SPAN_ID], ids[_PARENT_SPAN_ID])
        self.spans += is_valid
        self.refused_spans += not is_valid
        return is_valid
