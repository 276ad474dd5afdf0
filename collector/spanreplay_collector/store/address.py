"""Content addressing: store a span's bytes as a skeleton plus parts named by their hash.

Every call resends the whole conversation, so the same messages recur again and again. A serialised span is
cut into *parts*, large slices that are stored once per run under their blake2b-128, and the literal bytes
between them. Parts are slices of the original bytes, so joining is exact for any content: the cuts
affect only how much is deduplicated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanreplay.model.errors import DamagedRecording

__all__ = ["Addressed", "address_span", "cut_text", "hash_part", "join"]

HASH_BYTES: Final = 16
TEXT_BYTES_MIN: Final = 512
"""Shorter strings stay in the skeleton: a reference costs 16 bytes that do not compress."""
PART_BYTES_MIN: Final = 256
"""Shorter JSON elements are grouped with their neighbours."""
PART_BYTES_MAX: Final = 1024 * 1024
"""Larger parts are cut; larger rows would hurt every reader of their granule."""
LITERAL_BYTES_MAX: Final = 64 * 1024
"""Longer byte sequences between large strings become parts too: every query of a run reads whole skeletons."""
BROKEN_ARRAYS_MAX: Final = 8
"""After this many arrays that do not parse, the search of a text stops: hostile text takes linear time."""
NESTING_MAX: Final = 16
"""Depth to which lists inside attribute values are searched for large strings."""

# Names under which providers and frameworks resend history or definitions.
_ARRAY: Final = re.compile(r'"(?:messages|input|tools|contents|functions|system|documents)"[ \t\r\n]*:[ \t\r\n]*\[')
# An image or another file inside JSON: a part of its own, so that it is the same part wherever it appears
_BLOB: Final = re.compile(r'(?:"b64": ?"|"data": ?"|;base64,)([A-Za-z0-9+/]{4096,}={0,2})')
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_COMMA: Final = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
# Parses one JSON value at a position and returns its end. In every release of CPython and PyPy, not in typeshed.
_scan_json: Callable[[str, int], tuple[Any, int]] = getattr(json.JSONDecoder(strict=False), "scan_once")  # noqa: B009  the stubs lack it

Range = tuple[int, int]


@dataclass(frozen=True)
class Addressed:
    """Bytes with parts taken out: the next `cuts[n]` bytes of the skeleton precede the n-th part."""

    skeleton: bytes
    cuts: tuple[int, ...]
    parts: tuple[bytes, ...]


def hash_part(body: bytes) -> bytes:
    """The name of a part within its run: blake2b-128."""
    return blake2b(body, digest_size=HASH_BYTES).digest()


def address_span(span: Span, blobs: MutableMapping[bytes, bytes]) -> tuple[Addressed, int]:
    """Cut a span into parts and return it with its size in bytes; add the parts' bodies to `blobs`."""
    raw = span.SerializeToString()
    ranges: list[Range] = []
    at = 0
    for text in _iter_large(span):
        # Any occurrence will do: a cut is put back in place, whichever value it belonged to.
        body = text if isinstance(text, bytes) else text.encode()
        start = raw.find(body, at)
        if start < 0:
            continue
        ranges.extend((start + a, start + b) for a, b in _cut(text, len(body)))
        at = start + len(body)
    return _address(raw, ranges, blobs), len(raw)


def cut_text(text: str) -> list[Range]:
    """The byte ranges of a text that become parts, ascending and disjoint; pure.

    Elements of JSON arrays that hold history or definitions are separate parts, so that a longer history
    shares its beginning with a shorter one. Text between and around them is cut at a fixed size.
    """
    return _cut(text, len(text.encode()))


def join(skeleton: bytes, cuts: Sequence[int], parts: Sequence[bytes], blobs: Mapping[bytes, bytes]) -> bytes:
    """Restore the original bytes. Raises: DamagedRecording if a part is missing."""
    pieces: list[bytes] = []
    at = 0
    try:
        for cut, part in zip(cuts, parts, strict=True):
            pieces.append(skeleton[at : at + cut])
            pieces.append(blobs[part])
            at += cut
    except KeyError as exc:
        raise DamagedRecording(
            "a part of a recorded span is missing from the store",
            hint="restore the store, or import the run's .replay file again",
        ) from exc
    pieces.append(skeleton[at:])
    return b"".join(pieces)


def _address(raw: bytes, ranges: Iterable[Range], blobs: MutableMapping[bytes, bytes]) -> Addressed:
    literals: list[bytes] = []
    cuts: list[int] = []
    parts: list[bytes] = []
    at = 0
    for start, end in _bounded(ranges, len(raw)):
        body = raw[start:end]
        part = hash_part(body)
        blobs[part] = body
        literals.append(raw[at:start])
        cuts.append(start - at)
        parts.append(part)
        at = end
    literals.append(raw[at:])
    return Addressed(b"".join(literals), tuple(cuts), tuple(parts))


def _bounded(ranges: Iterable[Range], size: int) -> Iterator[Range]:
    """Yield the ranges and the long gaps between them, cut to at most PART_BYTES_MAX."""
    at = 0
    for start, end in (*ranges, (size, size)):
        if start - at > LITERAL_BYTES_MAX:
            yield from _fixed(at, start)
        yield from _fixed(start, end)
        at = end


def _fixed(start: int, end: int) -> Iterator[Range]:
    return ((a, min(a + PART_BYTES_MAX, end)) for a in range(start, end, PART_BYTES_MAX))


def _iter_large(span: Span) -> Iterator[str | bytes]:
    """Yield every large string of a span, in the order in which protobuf writes them."""
    yield from _iter_large_in(span.attributes)
    for event in span.events:
        yield from _iter_large_in(event.attributes)
    for link in span.links:
        yield from _iter_large_in(link.attributes)


def _iter_large_in(pairs: Iterable[KeyValue]) -> Iterator[str | bytes]:
    for pair in pairs:
        yield from _iter_large_value(pair.value, 0)


def _iter_large_value(value: AnyValue, depth: int) -> Iterator[str | bytes]:
    which = value.WhichOneof("value")
    if which == "string_value":
        if len(value.string_value) >= TEXT_BYTES_MIN:
            yield value.string_value
    elif which == "bytes_value":
        if len(value.bytes_value) >= TEXT_BYTES_MIN:
            yield value.bytes_value
    elif which == "array_value" and depth < NESTING_MAX:
        for item in value.array_value.values:
            yield from _iter_large_value(item, depth + 1)
    elif which == "kvlist_value" and depth < NESTING_MAX:
        for pair in value.kvlist_value.values:
            yield from _iter_large_value(pair.value, depth + 1)


def _cut(text: str | bytes, size: int) -> list[Range]:
    if isinstance(text, bytes):
        return list(_with_gaps([], size))
    groups = _iter_around(_iter_groups(text), (found.span(1) for found in _BLOB.finditer(text)), len(text))
    return list(_with_gaps(groups if text.isascii() else _iter_byte_ranges(text, groups), size))


def _iter_around(ranges: Iterable[Range], blobs: Iterable[Range], size: int) -> Iterator[Range]:
    """Yield the blobs that cross no boundary of a range, and the rest of the ranges before, between and after them."""
    waiting = iter(blobs)
    blob = next(waiting, None)
    at = 0
    for start, end in (*ranges, (size, size)):
        while blob is not None and blob[0] < start:
            if blob[0] >= at and blob[1] <= start:
                yield blob
            blob = next(waiting, None)
        at = start
        while blob is not None and blob[0] < end:
            if blob[1] <= end:
                if blob[0] - at >= PART_BYTES_MIN:
                    yield at, blob[0]
                yield blob
                at = blob[1]
            blob = next(waiting, None)
        if end - at >= PART_BYTES_MIN or (at == start and end > start):
            yield at, end
        at = end


def _with_gaps(ranges: Iterable[Range], size: int) -> Iterator[Range]:
    """Yield the ranges and the gaps between them that are long enough for a part."""
    at = 0
    for start, end in ranges:
        if start - at >= TEXT_BYTES_MIN:
            yield at, start
        yield start, end
        at = end
    if size - at >= TEXT_BYTES_MIN:
        yield at, size


def _iter_byte_ranges(text: str, ranges: Iterable[Range]) -> Iterator[Range]:
    """Convert ranges of characters to ranges of UTF-8 bytes."""
    chars = position = 0
    for start, end in ranges:
        begin = position + len(text[chars:start].encode())
        position = begin + len(text[start:end].encode())
        chars = end
        yield begin, position


def _iter_groups(text: str) -> Iterator[Range]:
    """Yield the character ranges of the elements of known arrays; short neighbours are grouped.

    Groups are formed from the array's start, so that they stay the same when elements are appended.
    """
    at = broken = 0
    while broken < BROKEN_ARRAYS_MAX and (found := _ARRAY.search(text, at)):
        at = begin = _space_end(text, found.end())
        while True:
            try:
                _, at = _scan_json(text, at)
            except (StopIteration, ValueError, RecursionError):
                # Not JSON, truncated, an empty array, or too deep: the elements before it still count.
                broken += not text.startswith("]", at)
                break
            if at - begin >= PART_BYTES_MIN:
                yield begin, at
                begin = -1
            comma = _COMMA.match(text, at)
            if comma is None:
                break
            at = comma.end()
            if begin < 0:
                begin = at


def _space_end(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
