"""Turn the bytes of a request body into a checked OTLP payload; pure functions."""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import zstandard
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from spanreplay.model.errors import SpanreplayError
from spanreplay.recording.otlp.otlp_json import read_request
from spanreplay_collector import limits
from spanreplay_collector.wire_check import TooManyFields, check_wire, leave_out_invalid

_JSON_MARKS: Final = (b"{", b"[", b",")
_WIDE: Final = re.compile(rb"[\xf0-\xf4]|\\u[dD][89a-fA-F]")
_NOT_ASCII: Final = re.compile(rb"[\x80-\xef]|\\u(?!00[0-7])")
"""What makes Python's strings larger: four bytes for each character, or a copy as UTF-8; as text and as an escape."""
ENCODINGS: Final = "gzip, deflate, zstd"


class BadRequest(SpanreplayError):
    """The request body is invalid; sending it again is useless."""


class TooLarge(SpanreplayError):
    """The request is larger than the collector accepts, possibly only after decompression."""


class UnknownEncoding(SpanreplayError):
    """The content encoding or type is not supported."""


@dataclass(frozen=True)
class CheckedRequest:
    """A valid payload with its span count; `payload` is the sender's bytes wherever possible."""

    payload: bytes
    spans: int
    refused_spans: int = 0

    def response(self) -> ExportTraceServiceResponse:
        """Build the response to the sender."""
        response = ExportTraceServiceResponse()
        if self.refused_spans:
            response.partial_success.rejected_spans = self.refused_spans
            response.partial_success.error_message = (
                "spans refused: trace_id must be 16 bytes and span_id 8 bytes, not all zero"
            )
        return response


# ── Unpacking ───────────────────────────────────────────────────────────────────────────────────────


def inflate(body: bytes, encoding: str, size_max: int) -> bytes:
    """Decompress a body. Raises: UnknownEncoding, TooLarge, BadRequest.

    Never holds more than `size_max` plus one read buffer, whatever decompressed size the body claims.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in _INFLATERS:
        raise UnknownEncoding(f"content-encoding {encoding[:40]!r} is not supported", hint=f"use {ENCODINGS}")
    whole = io.BytesIO()  # joined parts would be in memory twice
    try:
        for part in _INFLATERS[name](body, size_max + 1):
            if whole.tell() + len(part) > size_max:
                raise TooLarge(f"the unpacked request is larger than {size_max} bytes")
            whole.write(part)
    except (zlib.error, zstandard.ZstdError, EOFError) as exc:
        raise BadRequest(f"the body is not valid {name}") from exc
    return whole.getvalue()


def _inflate_gzip(body: bytes, size_max: int) -> Iterator[bytes]:
    while body:  # a gzip body may be several members
        member = zlib.decompressobj(wbits=31)
        yield from _inflate_zlib(member, body, size_max)
        body = member.unused_data


def _inflate_deflate(body: bytes, size_max: int) -> Iterator[bytes]:
    # RFC 9110 means the zlib format; some clients send raw deflate.
    is_zlib = len(body) >= 2 and body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    yield from _inflate_zlib(zlib.decompressobj(wbits=15 if is_zlib else -15), body, size_max)


def _inflate_zlib(unpacker: zlib._Decompress, body: bytes, size_max: int) -> Iterator[bytes]:
    chunk_max = min(size_max, 1 << 20)
    yield unpacker.decompress(body, chunk_max)
    while not unpacker.eof:
        part = unpacker.decompress(unpacker.unconsumed_tail, chunk_max)
        if not part and not unpacker.unconsumed_tail and not unpacker.eof:
            raise EOFError
        yield part


def _inflate_zstd(body: bytes, size_max: int) -> Iterator[bytes]:
    # Not stream_reader: it accepts a truncated body as a shorter one. In slices, because decompressobj
    # has no limit: four bytes may expand to a block of 128 KiB.
    del size_max
    unpacker = zstandard.ZstdDecompressor(max_window_size=limits.ZSTD_WINDOW_BYTES_MAX)
    place = 0
    while place < len(body):  # a zstd body may be several frames
        frame = unpacker.decompressobj()
        while not frame.eof:
            if place >= len(body):
                raise EOFError
            yield frame.decompress(body[place : place + limits.ZSTD_SLICE_BYTES])
            place = min(place + limits.ZSTD_SLICE_BYTES, len(body))
        place -= len(frame.unused_data)


_INFLATERS: Final[dict[str, Callable[[bytes, int], Iterator[bytes]]]] = {
    "gzip": _inflate_gzip,
    "x-gzip": _inflate_gzip,
    "deflate": _inflate_deflate,
    "zstd": _inflate_zstd,
}


# ── Checking ────────────────────────────────────────────────────────────────────────────────────────


def check_protobuf(body: bytes) -> CheckedRequest:
    """Check that a protobuf request parses; leave out spans with invalid ids. Raises: BadRequest, TooLarge.

    Unless a span must be left out, the bytes are passed on unchanged, so that unknown fields are kept.
    """
    try:
        checked = check_wire(body, fields_max=limits.FIELDS_MAX)
    except DecodeError as exc:
        raise BadRequest(
            "the body is not an ExportTraceServiceRequest: malformed, nested too deeply or not UTF-8"
        ) from exc
    except TooManyFields as exc:
        raise TooLarge(f"the request has more than {limits.FIELDS_MAX} spans or fields: send smaller batches") from exc
    return CheckedRequest(checked.payload, checked.spans, checked.refused_spans)


def _find_json_limit(body: bytes) -> int:
    """The largest size of a request with the characters of this one."""
    if len(body) <= limits.JSON_WIDE_BYTES_MAX:
        return limits.JSON_BYTES_MAX
    if _WIDE.search(body):
        return limits.JSON_WIDE_BYTES_MAX
    return limits.JSON_TEXT_BYTES_MAX if _NOT_ASCII.search(body) else limits.JSON_BYTES_MAX


def check_json(body: bytes) -> CheckedRequest:
    """Convert an OTLP/JSON request to protobuf. Raises: BadRequest, TooLarge."""
    most = _find_json_limit(body)
    if len(body) > most:
        raise TooLarge(
            f"the request has {len(body):,} bytes, and JSON with such characters may have {most:,}",
            hint="send smaller batches, or protobuf",
        )
    if sum(map(body.count, _JSON_MARKS)) > limits.JSON_ITEMS_MAX:
        raise TooLarge(
            f"the request has more than {limits.JSON_ITEMS_MAX} values", hint="send smaller batches, or protobuf"
        )
    try:
        tree = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise BadRequest("the body is not JSON, or nested too deeply") from exc
    if not isinstance(tree, dict):
        raise BadRequest("the body is not a JSON object")
    try:
        request = read_request(tree)
    except ValueError as exc:
        raise BadRequest("the body is not OTLP/JSON") from exc
    del tree  # its texts are as large as the message
    spans, refused = leave_out_invalid(request)
    return CheckedRequest(request.SerializeToString(), spans, refused)
