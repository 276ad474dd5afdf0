"""Reading a request body: unpacking with a limit, checking, OTLP/JSON."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.recording.otlp.otlp import decode_attributes
from spanreplay_collector import limits
from spanreplay_collector.receive.payload import (
    BadRequest,
    TooLarge,
    UnknownEncoding,
    check_json,
    check_protobuf,
    inflate,
)
from support.collector import make_deep, make_payload

MIB = 1 << 20


def deflate_raw(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


def zstd_frames(body: bytes) -> bytes:
    half = len(body) // 2
    return zstandard.compress(body[:half]) + zstandard.compress(body[half:])


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "gzip in two members": ("gzip", lambda b: gzip.compress(b[:7]) + gzip.compress(b[7:])),
    "x-gzip": ("X-Gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", deflate_raw),
    "zstd": ("zstd", zstandard.compress),
    "zstd in two frames": ("zstd", zstd_frames),
    "identity": ("identity", bytes),
    "none": ("", bytes),
}


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("size", [0, 1, 20, 3 * MIB + 17])
def test_inflate_gives_the_bytes_back(packer: str, size: int) -> None:
    """Every content encoding that OTLP clients use is unpacked, empty or larger than a buffer."""
    body = random.Random(size).randbytes(size // 2) + b"a" * (size - size // 2)
    encoding, pack = PACKERS[packer]
    assert inflate(pack(body), encoding, 4 * MIB) == body


@pytest.mark.parametrize("packer", ["gzip", "deflate", "raw deflate", "zstd"])
def test_inflate_stops_a_bomb(packer: str) -> None:
    """A body that unpacks to more than the limit is refused without ever being held in memory."""
    encoding, pack = PACKERS[packer]
    bomb = pack(bytes(256 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            inflate(bomb, encoding, 8 * MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 48 * MIB


@pytest.mark.parametrize("packer", PACKERS)
def test_r6_an_unpacked_body_is_in_memory_once(packer: str) -> None:
    """A body as large as allowed is not held twice, in parts and as a whole, while it is unpacked."""
    encoding, pack = PACKERS[packer]
    packed = pack(bytes(32 * MIB))
    tracemalloc.start()
    try:
        assert len(inflate(packed, encoding, 33 * MIB)) == 32 * MIB
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 48 * MIB


@pytest.mark.parametrize("packer", ["gzip", "deflate", "raw deflate", "zstd"])
def test_inflate_refuses_what_is_cut_off(packer: str) -> None:
    """A body that ends early is refused, not taken for a shorter one."""
    encoding, pack = PACKERS[packer]
    packed = pack(random.Random(1).randbytes(5000))
    for cut in (1, 9, len(packed) // 2, len(packed) - 1):
        with pytest.raises(BadRequest):
            inflate(packed[:cut], encoding, MIB)


def test_inflate_refuses_unknown_encodings() -> None:
    """The error names the supported encodings."""
    with pytest.raises(UnknownEncoding) as caught:
        inflate(b"x", "br", MIB)
    assert "gzip" in caught.value.hint


def test_inflate_refuses_a_zstd_window_that_would_fill_the_memory() -> None:
    """A frame can't make us allocate gigabytes before its first byte."""
    header = bytes.fromhex("28b52ffd") + bytes([0x00, 0xB8]) + bytes([0x01, 0x00, 0x00])
    with pytest.raises(BadRequest):
        inflate(header, "zstd", MIB)


@settings(max_examples=300, deadline=None)
@given(body=st.binary(max_size=400), encoding=st.sampled_from(["gzip", "deflate", "zstd"]))
def test_r6_inflate_random_bytes_is_refused_or_unpacked(body: bytes, encoding: str) -> None:
    """Random bytes are unpacked or refused with our own errors."""
    try:
        unpacked = inflate(body, encoding, MIB)
    except (BadRequest, TooLarge):
        return
    assert len(unpacked) <= MIB


@settings(max_examples=500, deadline=None)
@given(body=st.binary(max_size=600))
def test_r6_check_random_bytes_is_refused_or_read(body: bytes) -> None:
    """Random bytes raise nothing but BadRequest, as protobuf and as JSON."""
    for check in (check_protobuf, check_json):
        try:
            check(body)
        except BadRequest:
            continue


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 1 << 32), flips=st.integers(1, 5))
def test_r6_check_mutated_requests(seed: int, flips: int) -> None:
    """A flipped byte in a real request never raises an exception of another kind."""
    dice = random.Random(seed)
    body = bytearray(make_payload(seed % 1000 + 1, spans=3, attributes={"a": ["b", 1, 2.5, b"c"]}))
    for _ in range(flips):
        body[dice.randrange(len(body))] = dice.randrange(256)
    try:
        checked = check_protobuf(bytes(body))
    except BadRequest:
        return
    ExportTraceServiceRequest.FromString(checked.payload)


def test_c7_protobuf_passes_unchanged() -> None:
    """The sender's bytes are kept as they came, including fields of newer OTLP versions, NUL and large texts."""
    unknown = bytes([0xF2, 0x3F, 3]) + b"new"
    body = make_payload(1, spans=2, attributes={"nul": "a\0b", "big": "x" * MIB}) + unknown
    checked = check_protobuf(body)
    assert (checked.payload, checked.spans, checked.refused_spans) == (body, 2, 0)


BAD_IDS = {
    "no trace id": (b"", b"12345678", b""),
    "zero trace id": (bytes(16), b"12345678", b""),
    "short trace id": (b"123", b"12345678", b""),
    "zero span id": (b"1" * 16, bytes(8), b""),
    "long span id": (b"1" * 16, b"1" * 9, b""),
    "short parent": (b"1" * 16, b"1" * 8, b"123"),
}


@pytest.mark.parametrize("case", BAD_IDS)
def test_c7_spans_with_invalid_ids_are_refused_alone(case: str) -> None:
    """Neighbours of spans with invalid ids are kept, and the answer is a partial success with the count."""
    request = ExportTraceServiceRequest.FromString(make_payload(1, spans=3))
    span = request.resource_spans[0].scope_spans[0].spans[1]
    span.trace_id, span.span_id, span.parent_span_id = BAD_IDS[case]
    checked = check_protobuf(request.SerializeToString())
    assert (checked.spans, checked.refused_spans) == (2, 1)
    kept = ExportTraceServiceRequest.FromString(checked.payload).resource_spans[0].scope_spans[0].spans
    assert [s.name for s in kept] == ["span 1.0", "span 1.2"]
    assert checked.response().partial_success.rejected_spans == 1


MALFORMED: dict[str, bytes] = {
    "text": b"hello",
    "truncated": make_payload(1)[:-3],
    "invalid UTF-8": make_payload(1, text="zzzz").replace(b"zzzz", b"\xff\xfe\xff\xfe"),
    "deep": make_deep(5000),
    "length beyond the end": b"\x0a\xff\xff\xff\xff\x07",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_c7_malformed_protobuf_is_refused(case: str) -> None:
    """Malformed protobuf is refused with one clear line, never with a crash."""
    with pytest.raises(BadRequest, match="ExportTraceServiceRequest"):
        check_protobuf(MALFORMED[case])


def otlp_json(**span: Any) -> dict[str, Any]:
    fields = {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": "eee19b7ec3c1b174",
        "parentSpanId": "eee19b7ec3c1b173",
        "name": "I'm a server span",
        "startTimeUnixNano": "1544712660000000000",
        "endTimeUnixNano": "1544712661000000000",
        "kind": 2,
        "attributes": [{"key": "my.span.attr", "value": {"stringValue": "some value"}}],
        **span,
    }
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "s"}, "spans": [fields]}]}]}


def test_c7_json_of_the_specification() -> None:
    """The specification's example is read, with hexadecimal ids, numbers as text and as numbers, bytes and links."""
    tree = otlp_json(
        endTimeUnixNano=1544712661000000000,
        links=[{"traceId": "0B" * 16, "spanId": "0c" * 8}],
        attributes=[
            {"key": "i", "value": {"intValue": "9007199254740993"}},
            {"key": "b", "value": {"bytesValue": "AAEC"}},
            {"key": "n", "value": {"kvlistValue": {"values": [{"key": "k", "value": {"boolValue": True}}]}}},
        ],
        someNewField={"a": 1},
    )
    checked = check_json(json.dumps(tree).encode())
    span = ExportTraceServiceRequest.FromString(checked.payload).resource_spans[0].scope_spans[0].spans[0]
    assert span.trace_id.hex() == "5b8efff798038103d269b633813fc60c"
    assert span.parent_span_id.hex() == "eee19b7ec3c1b173"
    assert span.links[0].trace_id == b"\x0b" * 16
    assert span.end_time_unix_nano == 1544712661000000000
    assert span.attributes[0].value.int_value == 9007199254740993
    assert span.attributes[1].value.bytes_value == b"\0\1\2"
    assert span.attributes[2].value.kvlist_value.values[0].value.bool_value


def test_c7_json_with_half_an_emoji_is_kept() -> None:
    """JavaScript cuts strings inside surrogate pairs; such a batch is not lost."""
    body = json.dumps(otlp_json(name="cut \ud83d here", attributes=[])).encode()
    checked = check_json(body)
    span = ExportTraceServiceRequest.FromString(checked.payload).resource_spans[0].scope_spans[0].spans[0]
    assert span.name == "cut \ufffd here"


def test_c7_json_with_a_large_float_as_integer_is_kept() -> None:
    """JavaScript calls 1e300 an integer, as it has no fraction; the value is kept as the float that it is."""
    values = {"huge": 1e300, "just too large": 2**63, "largest": 2**63 - 1, "smallest": -(2**63)}
    attributes = [{"key": name, "value": {"intValue": value}} for name, value in values.items()]
    checked = check_json(json.dumps(otlp_json(attributes=attributes)).encode())
    span = ExportTraceServiceRequest.FromString(checked.payload).resource_spans[0].scope_spans[0].spans[0]
    kept = decode_attributes(span.attributes)
    assert kept == values
    assert [type(kept[name]) for name in values] == [float, float, int, int]


BAD_JSON: dict[str, bytes] = {
    "not JSON": b"{",
    "a list": b"[]",
    "a number": b"1",
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep attribute": json.dumps(otlp_json()).encode().replace(
        b'{"stringValue": "some value"}',
        b'{"arrayValue":{"values":[' * 500 + b'{"intValue":1}' + b"]}}" * 500,
    ),
    "ids that are not hexadecimal": json.dumps(otlp_json(traceId="xyz")).encode(),
    "wrong type": json.dumps(otlp_json(name=7)).encode(),
    "spans is a number": b'{"resourceSpans": [{"scopeSpans": [{"spans": 5}]}]}',
    "resourceSpans is a number": b'{"resourceSpans": 5}',
    "huge number": b'{"resourceSpans": ' + b"9" * 10_000 + b"}",
    "not UTF-8": b'{"a": "\xff"}',
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_JSON)
def test_c7_bad_json_is_refused(case: str) -> None:
    """Bad JSON is refused with one clear line, never with a crash."""
    with pytest.raises(BadRequest, match="JSON"):
        check_json(BAD_JSON[case])


@pytest.mark.parametrize("item", [b"{}", b"[]", b"0"], ids=["objects", "lists", "numbers"])
def test_r6_json_of_very_many_values_is_refused_unread(item: bytes) -> None:
    """A body of small values that would take twenty times its size in memory is refused before it is parsed."""
    with pytest.raises(TooLarge, match="values"):
        check_json(b"{%b" % item + b',"a":[' + b",".join([item] * (limits.JSON_ITEMS_MAX + 1)))
    assert check_json(b'{"resourceSpans":[' + b",".join([b"{}"] * (limits.JSON_ITEMS_MAX // 3)) + b"]}").spans == 0
