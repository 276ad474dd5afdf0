"""Convert OTLP payloads to rows of the tables; pure functions.

Nothing in a span may stop a load: a value that does not fit its column (a number out of range, invalid JSON)
is clamped or left out. The span's own bytes are always stored completely.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from hashlib import blake2b
from itertools import chain
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from spanreplay.model import attributes as names
from spanreplay.model.call import Outcome, Recording, RootRecord
from spanreplay.model.errors import DamagedRecording
from spanreplay.recording.otlp.otlp import decode_attributes
from spanreplay_collector import limits
from spanreplay_collector.store.address import address_span, hash_part
from spanreplay_collector.wire import iter_filed
from spanreplay_collector.wire_check import check_wire

__all__ = [
    "BLOB_COLUMNS",
    "BOUNDARY_COLUMNS",
    "SPAN_COLUMNS",
    "Batch",
    "build_batches",
    "day_of_run",
    "derive_run_id",
    "parse_run_id",
]

QUERY_TEXT_CHARS_MAX: Final = 1024
"""Longer names and ids are cut in the columns that queries use."""
MAP_TEXT_CHARS_MAX: Final = 256
"""Longer attribute values are left out of the map that queries use: they are content."""
ATTRIBUTES_MAX: Final = 64
"""Maximum number of a span's attributes copied to the query map."""
SEQ_FOREIGN: Final = 2**32 - 1
VERSION_OPEN: Final = 0
VERSION_FINAL: Final = 1
"""Version of a row until it is stored; the version in the table also encodes the order of arrival."""
NO_DAY: Final = date(1970, 1, 1)
_DAY_MS: Final = 86_400_000
_YEAR_2020_MS: Final = 1_577_836_800_000
_YEAR_2100_MS: Final = 4_102_444_800_000

_TEXT: Final = "String"
_WORD: Final = "LowCardinality(String)"
_WORDS: Final = "Map(LowCardinality(String), String)"
_ID16: Final = "FixedString(16)"
_ID8: Final = "FixedString(8)"

Columns = tuple[tuple[str, str], ...]
_RUN: Final[Columns] = (("tenant", _WORD), ("run_id", _ID16), ("day", "Date"))
_SPAN: Final[Columns] = (
    ("seq", "UInt32"),
    ("trace_id", _ID16),
    ("span_id", _ID8),
    ("parent_span_id", _ID8),
    ("version", "UInt64"),
    ("start_ns", "UInt64"),
    ("end_ns", "UInt64"),
)
SPAN_COLUMNS: Final[Columns] = (
    *_RUN,
    *_SPAN,
    ("name", _WORD),
    ("kind", _WORD),
    ("scope", _WORD),
    ("service", _WORD),
    ("status", "UInt8"),
    ("attributes", _WORDS),
    ("span_bytes", "UInt32"),
    ("resource", _ID16),
    ("scope_header", _ID16),
    ("skeleton", _TEXT),
    ("cuts", "Array(UInt32)"),
    ("parts", f"Array({_ID16})"),
)
BLOB_COLUMNS: Final[Columns] = (*_RUN, ("hash", _ID16), ("body", _TEXT))
BOUNDARY_COLUMNS: Final[Columns] = (
    *_RUN,
    *_SPAN,
    ("kind", _WORD),
    ("name", _WORD),
    ("effect", _WORD),
    ("lane", _WORD),
    ("call_index", "UInt32"),
    ("key", _TEXT),
    ("keyspec", _WORD),
    ("call_id", _TEXT),
    ("outcome", _WORD),
    ("end_seq", "Int32"),
    ("parent_seq", "Int32"),
    ("code", _WORD),
    ("request_bytes", "UInt32"),
    ("response_bytes", "UInt32"),
    ("redactions", "UInt32"),
    ("provider", _WORD),
    ("model", _WORD),
    ("response_model", _WORD),
    ("fingerprint", _WORD),
    ("finish_reason", _WORD),
    ("system_prompt_hash", _WORD),
    ("temperature", "Nullable(Float64)"),
    ("top_p", "Nullable(Float64)"),
    ("seed", "Nullable(Int64)"),
    ("max_tokens", "Nullable(Int64)"),
    ("is_stream", "UInt8"),
    ("tokens_in", "UInt64"),
    ("tokens_out", "UInt64"),
    ("meta", _WORDS),
    ("app", _WORD),
    ("user_id", _TEXT),
    ("session_id", _TEXT),
    ("replay_of", _TEXT),
    ("git_sha", _WORD),
    ("env", _TEXT),
    ("manifest", _TEXT),
    ("expected_calls", "Int64"),
    ("has_holes", "UInt8"),
)

Row = tuple[Any, ...]


@dataclass
class Batch:
    """The rows of one load; a blob appears once for each run that uses it."""

    spans: list[Row] = field(default_factory=list)
    boundaries: list[Row] = field(default_factory=list)
    boundary_places: list[int] = field(default_factory=list)
    """for each entry of `boundaries`, the index of its row in `spans`"""
    blobs: dict[bytes, dict[bytes, bytes]] = field(default_factory=dict)
    """run id → hash → body"""
    size_bytes: int = 0
    """total size of all spans as received"""


def parse_run_id(text: object) -> bytes | None:
    """Parse a run id to its 16 bytes; None if the text is not a run id."""
    if not isinstance(text, str) or len(text) != 32:
        return None
    try:
        return bytes.fromhex(text)
    except ValueError:
        return None


def derive_run_id(trace_id: bytes, start_ns: int) -> bytes:
    """The run id of a span that names none: a UUIDv7 derived from its trace and its UTC day.

    It is the same for all spans of a trace on one day, whenever and however often they arrive.
    """
    day_ms = start_ns // 1_000_000 // _DAY_MS * _DAY_MS
    stamp = (day_ms if _YEAR_2020_MS <= day_ms < _YEAR_2100_MS else 0).to_bytes(6, "big")
    tail = bytearray(blake2b(trace_id, digest_size=10, person=b"spanreplay-run").digest())
    tail[0] = 0x70 | tail[0] & 0x0F
    tail[2] = 0x80 | tail[2] & 0x3F
    return stamp + bytes(tail)


def day_of_run(run_id: bytes) -> date:
    """The partition of a run: the UTC day in its UUIDv7, or 1970-01-01 if it contains no plausible one."""
    ms = int.from_bytes(run_id[:6], "big")
    if run_id[6] >> 4 != 7 or not _YEAR_2020_MS <= ms < _YEAR_2100_MS:
        return NO_DAY
    return datetime.fromtimestamp(ms / 1000, timezone.utc).date()


def build_batches(
    tenant: str,
    payloads: Sequence[bytes],
    *,
    rows_max: int = limits.LOAD_ROWS_MAX,
    bytes_max: int = limits.LOAD_BYTES_MAX,
) -> Iterator[Batch]:
    """Convert all spans of the payloads to rows, in batches of bounded size; spans are parsed lazily.

    The same payloads give the same batches. Raises: DamagedRecording before the first batch if a payload is
    not an OTLP trace request.
    """
    for number, payload in enumerate(payloads):
        try:
            check_wire(payload)
        except DecodeError as exc:
            raise DamagedRecording(
                f"payload {number} of {len(payloads)} ({len(payload)} bytes) is not an OTLP trace request"
            ) from exc
    batch = Batch()
    filed: _Filed | None = None
    for each in chain.from_iterable(map(iter_filed, payloads)):
        size = each.span.ByteSize()
        if batch.spans and (len(batch.spans) >= rows_max or batch.size_bytes + size > bytes_max):
            yield batch
            batch = Batch()
        if filed is None or filed.scope_spans is not each.scope:
            filed = _file(tenant, each.resource, each.scope, filed)
        _add_span(batch, filed, each.span)
        batch.size_bytes += size
    if batch.spans:
        yield batch


@dataclass(frozen=True)
class _Filed:
    """Values that all spans of one scope share; built once per scope, the resource once for all its scopes."""

    tenant: str
    resource_spans: ResourceSpans
    resource: Mapping[str, Any]
    resource_header: tuple[bytes, bytes]
    """hash and body"""
    scope_spans: ScopeSpans
    scope_header: tuple[bytes, bytes]


def _file(tenant: str, resource_spans: ResourceSpans, scope_spans: ScopeSpans, last: _Filed | None) -> _Filed:
    scope = ScopeSpans(schema_url=scope_spans.schema_url)
    if scope_spans.HasField("scope"):
        scope.scope.CopyFrom(scope_spans.scope)
    scope_header = _hashed(scope.SerializeToString())
    if last is not None and last.resource_spans is resource_spans:
        return replace(last, scope_spans=scope_spans, scope_header=scope_header)
    header = ResourceSpans(schema_url=resource_spans.schema_url)
    if resource_spans.HasField("resource"):
        header.resource.CopyFrom(resource_spans.resource)
    resource = decode_attributes(resource_spans.resource.attributes)
    return _Filed(tenant, resource_spans, resource, _hashed(header.SerializeToString()), scope_spans, scope_header)


def _add_span(batch: Batch, filed: _Filed, span: Span) -> None:
    attributes = decode_attributes(span.attributes)
    run_id = (
        parse_run_id(attributes.get(names.RUN_ID))
        or parse_run_id(filed.resource.get(names.RUN_ID))
        or derive_run_id(span.trace_id, span.start_time_unix_nano)
    )
    blobs = batch.blobs.setdefault(run_id, {})
    addressed, size = address_span(span, blobs)
    is_boundary = names.KIND in attributes and names.SCHEMA in attributes
    run = (filed.tenant, run_id, day_of_run(run_id))
    ids = (
        _clamp(attributes.get(names.SEQ), 0, SEQ_FOREIGN - 1, 0) if is_boundary else SEQ_FOREIGN,
        _fixed_id(span.trace_id, 16, span),
        _fixed_id(span.span_id, 8, span),
        span.parent_span_id[:8].ljust(8, b"\0"),
        VERSION_OPEN if attributes.get(names.OUTCOME) == Outcome.OPEN.value else VERSION_FINAL,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
    )
    kind = attributes.get(names.KIND) or str(attributes.get("openinference.span.kind", "")).lower()
    batch.spans.append(
        (
            *run,
            *ids,
            _word(span.name),
            _word(kind),
            _word(filed.scope_spans.scope.name),
            _word(filed.resource.get("service.name")),
            span.status.code & 0xFF,
            # A boundary's own attributes are columns of `boundaries` already.
            _scalars({k: v for k, v in attributes.items() if not k.startswith("spanreplay.")}),
            size,
            _add_blob(blobs, filed.resource_header),
            _add_blob(blobs, filed.scope_header),
            addressed.skeleton,
            addressed.cuts,
            addressed.parts,
        )
    )
    if is_boundary:
        batch.boundary_places.append(len(batch.spans) - 1)
        batch.boundaries.append((*run, *ids, *_boundary_values(attributes)))


def _boundary_values(attributes: Mapping[str, Any]) -> Row:
    get = attributes.get
    meta = _json_object(get(names.META))
    return (
        _word(get(names.KIND)),
        _word(get(names.NAME)),
        _word(get(names.EFFECT)),
        _word(get(names.LANE)),
        _clamp(get(names.INDEX), 0, 2**32 - 1, 0),
        _word(get(names.KEY)),
        _word(get(names.KEYSPEC)),
        _word(get(names.CALL_ID)),
        _word(get(names.OUTCOME, Outcome.OPEN.value)),
        _clamp(get(names.END_SEQ), -1, 2**31 - 1, -1),
        _clamp(get(names.PARENT), -1, 2**31 - 1, -1),
        _word(get(names.CODE)),
        _size(get(names.REQUEST)),
        _size(get(names.RESPONSE)),
        sum(_clamp(n, 0, 2**20, 0) for n in _json_object(get(names.REDACTIONS)).values()) & 0xFFFFFFFF,
        *_meta_values(meta),
        *_root_values(attributes),
    )


def _meta_values(meta: Mapping[str, Any]) -> Row:
    get = meta.get
    return (
        _word(get("provider")),
        _word(get("model")),
        _word(get("response_model")),
        _word(get("fingerprint")),
        _word(get("finish_reason")),
        _word(get("system_prompt_hash")),
        _number(get("temperature")),
        _number(get("top_p")),
        _whole(get("seed")),
        _whole(get("max_tokens")),
        int(bool(get("stream"))),
        _clamp(get("tokens_in"), 0, 2**63, 0),
        _clamp(get("tokens_out"), 0, 2**63, 0),
        _scalars(meta),
    )


def _root_values(attributes: Mapping[str, Any]) -> Row:
    get = attributes.get
    if get(names.KIND) != names.KIND_RUN:
        return ("", "", "", "", "", "", "", -1, 0)
    manifest = _json_object(get(names.MANIFEST))
    calls = manifest.get("calls")
    return (
        _word(get(names.APP)),
        _word(get(names.USER_ID)),
        _word(get(names.SESSION_ID)),
        _word(get(names.REPLAY_OF)),
        _word(_json_object(get(names.ENV)).get("git_sha")),
        _text(get(names.ENV)),
        _text(get(names.MANIFEST)) if manifest else "",
        _clamp(calls, 0, 2**62, -1) if isinstance(calls, int) else -1,
        int(_has_holes(manifest)),
    )


def _has_holes(manifest: Mapping[str, Any]) -> bool:
    """Whether the manifest itself reports losses; queries compare the number of calls that arrived."""
    if not manifest:
        return False
    root = RootRecord(run_id="", manifest={**manifest, "calls": 0})
    return not Recording(root, ()).completeness().is_complete


def _fixed_id(span_or_trace_id: bytes, size: int, span: Span) -> bytes:
    """Return an id with the width of its column; replace an invalid one by the span's hash to avoid collisions."""
    if len(span_or_trace_id) == size and any(span_or_trace_id):
        return span_or_trace_id
    return blake2b(span.SerializeToString(deterministic=True), digest_size=size).digest()


def _hashed(body: bytes) -> tuple[bytes, bytes]:
    return hash_part(body), body


def _add_blob(blobs: dict[bytes, bytes], part: tuple[bytes, bytes]) -> bytes:
    blobs[part[0]] = part[1]
    return part[0]


def _text(value: object) -> str:
    """Make text encodable as UTF-8: a lone surrogate, which JSON can contain, becomes a question mark."""
    if not isinstance(value, str):
        return ""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _word(value: object) -> str:
    return _text(value)[:QUERY_TEXT_CHARS_MAX]


def _size(value: object) -> int:
    return len(value if value.isascii() else value.encode("utf-8", "replace")) if isinstance(value, str) else 0


def _scalars(values: Mapping[str, Any]) -> dict[str, str]:
    """Convert the short scalar values to text in the notation of queries; at most ATTRIBUTES_MAX."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, (int, float)):
            text = repr(value)
        elif isinstance(value, str) and len(value) <= MAP_TEXT_CHARS_MAX:
            text = value
        else:
            continue
        found[_word(name)] = _text(text)
        if len(found) >= ATTRIBUTES_MAX:
            break
    return found


def _json_object(text: object) -> dict[str, Any]:
    if not isinstance(text, str) or not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _clamp(value: object, low: int, high: int, default: int) -> int:
    if isinstance(value, float) and math.isfinite(value):
        value = int(value)
    return min(max(value, low), high) if isinstance(value, int) else default


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float)) else None
    except OverflowError:
        return None


def _whole(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None
