"""Requests checked and read in pieces give the same result as protobuf on the whole, for any bytes."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.recording.otlp.otlp import encode_attributes
from spanreplay_collector.wire import iter_filed, make_header
from spanreplay_collector.wire_check import check_wire, leave_out_invalid
from support.collector import make_payload

PIECES = (1, 7, 40, 200, 1 << 18)
"""Sizes of a piece: smaller than any field, in between, and larger than the whole request."""

GROUP = b"\xfb\x3f" + b"\x0a\x02hi" + b"\x0b\x10\x05\x0c" + b"\xfc\x3f"
"""Field 1023 as a group that contains a text and another group."""


def make_rich(number: int, dice: random.Random) -> bytes:
    """A request with two resources, scopes, events, links, nested values, NUL and, at times, invalid ids."""
    request = ExportTraceServiceRequest()
    for place in range(2):
        batch = request.resource_spans.add(schema_url=f"https://example/{place}")
        batch.resource.attributes.extend(encode_attributes({"service.name": f"agent {place}", "list": [1, "two"]}))
        for scope_place in range(2):
            scope = batch.scope_spans.add()
            scope.scope.name = f"scope {scope_place}"
            for span_place in range(3):
                span = scope.spans.add(name=f"span {number}.{place}.{scope_place}.{span_place}")
                span.trace_id = bytes(16) if dice.random() < 0.2 else dice.randbytes(16)
                span.span_id = dice.randbytes(8 if dice.random() < 0.9 else 3)
                nested = {"a": [{"b": "ü" * dice.randrange(60)}, b"\0\xff"], "c": 1.5}
                span.attributes.extend(encode_attributes({"text": "x\0" * dice.randrange(90), "nested": nested}))
                event = span.events.add(name="event")
                event.attributes.extend(encode_attributes({"e": "y" * dice.randrange(50)}))
                span.links.add(trace_id=b"l" * 16, span_id=b"l" * 8)
                span.status.message = "fine"
    return request.SerializeToString()


def compare(body: bytes, piece_bytes_max: int) -> None:
    """Assert that the check in pieces accepts what protobuf accepts, and keeps the same spans."""
    whole = ExportTraceServiceRequest()
    try:
        whole.ParseFromString(body)
    except DecodeError:
        with pytest.raises(DecodeError):
            check_wire(body, piece_bytes_max)
        return
    spans, refused = leave_out_invalid(whole)
    checked = check_wire(body, piece_bytes_max)
    assert (checked.spans, checked.refused_spans) == (spans, refused)
    if not refused:
        assert checked.payload is body
    # As bytes, because a NaN equals nothing.
    assert ExportTraceServiceRequest.FromString(checked.payload).SerializeToString() == whole.SerializeToString()
    expected = [
        (_encode(batch.resource), batch.schema_url, _encode(scope.scope), scope.schema_url, _encode(span))
        for batch in whole.resource_spans
        for scope in batch.scope_spans
        for span in scope.spans
    ]
    read = [
        (
            _encode(f.resource.resource),
            f.resource.schema_url,
            _encode(f.scope.scope),
            f.scope.schema_url,
            _encode(f.span),
        )
        for f in iter_filed(checked.payload)
    ]
    assert read == expected


def _encode(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), piece=st.sampled_from(PIECES))
def test_c7_pieces_of_a_request_are_read_as_the_whole(seed: int, piece: int) -> None:
    """Every span is read with its resource and scope, without those whose ids are invalid."""
    compare(make_rich(seed, random.Random(seed)), piece)


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 1 << 32), flips=st.integers(1, 4), piece=st.sampled_from(PIECES))
def test_r6_pieces_of_mutated_bytes_are_judged_as_the_whole(seed: int, flips: int, piece: int) -> None:
    """Bytes that were changed, removed or inserted are refused if, and only if, protobuf refuses them."""
    dice = random.Random(seed)
    body = bytearray(make_rich(seed, dice))
    for _ in range(flips):
        if not body:
            break
        at = dice.randrange(len(body))
        kind = dice.randrange(4)
        if kind == 0:
            body[at] = dice.randrange(256)
        elif kind == 1:
            del body[at : at + dice.randrange(1, 5)]
        elif kind == 2:
            body[at:at] = dice.choice([GROUP, b"\x80\x00", b"\xff" * 9 + b"\x01", dice.randbytes(3)])
        else:
            del body[at:]
    compare(bytes(body), piece)


def field(number: int, content: bytes) -> bytes:
    return make_header(number, len(content)) + content


def surround(span: bytes) -> bytes:
    """Return a request with a valid span and this one in the same scope."""
    good = field(1, b"g" * 16) + field(2, b"g" * 8) + field(5, b"good")
    return field(1, field(2, field(2, good) + field(2, span)))


IDS = field(1, b"t" * 16) + field(2, b"s" * 8)
TEXT = field(9, field(1, b"text") + field(2, field(1, b"x" * 300)))
ODD_SPANS: dict[str, bytes] = {
    "unknown field": IDS + TEXT + field(1000, b"new"),
    "group": IDS + GROUP + TEXT,
    "group that does not end": IDS + TEXT + b"\xfb\x3f\x0a\x02hi",
    "end without a group": IDS + TEXT + b"\xfc\x3f",
    "groups 200 deep": IDS + TEXT + b"\xfb\x3f" * 200 + b"\xfc\x3f" * 200,
    "overlong length": IDS + TEXT + b"\x2a\x82\x80\x00ab",
    "length of six bytes": IDS + TEXT + b"\x2a\x82\x80\x80\x80\x80\x00ab",
    "overlong tag": IDS + TEXT + b"\xaa\x80\x00\x02ab",
    "tag of six bytes": IDS + TEXT + b"\xaa\x80\x80\x80\x80\x00\x02ab",
    "tag beyond 32 bits": IDS + TEXT + b"\xaa\x80\x80\x80\x7f\x02ab",
    "varint of eleven bytes": IDS + TEXT + b"\x38" + b"\x80" * 10 + b"\x00",
    "field number 0": IDS + TEXT + b"\x02\x01a",
    "kind 6": IDS + TEXT + b"\x2e\x01a",
    "kind 7": IDS + TEXT + b"\x2f\x01a",
    "cut off": IDS + TEXT[:-5],
    "length beyond the span": IDS + TEXT + b"\x2a\x05ab",
    "fixed field beyond the span": IDS + TEXT + b"\x39\x00\x00",
    "not UTF-8": IDS + TEXT + field(5, b"\xff\xfe"),
    "long text of many alphabets": IDS + field(5, "xä€😀".encode() * 100),
    "long text with a surrogate": IDS + field(5, b"x" * 300 + b"\xed\xa0\x80"),
    "long text with an overlong character": IDS + field(5, b"x" * 300 + b"\xc0\x80"),
    "long text beyond Unicode": IDS + field(5, b"x" * 300 + b"\xf4\x90\x80\x80"),
    "long text that ends within a character": IDS + field(5, b"x" * 300 + b"\xe2\x82"),
    "long bytes": IDS + field(9, field(1, b"k") + field(2, field(7, b"\xff" * 300))),
    "long unknown field": IDS + field(1000, b"\xff" * 300),
    "long field of another kind": IDS + field(7, b"\xff" * 300),
    "long ids": IDS + field(1, b"t" * 300),
    "id twice, the last valid": field(1, b"") + TEXT + IDS,
    "id twice, the last empty": IDS + TEXT + field(1, b""),
    "id of another kind": IDS + TEXT + b"\x08\x05",
    "status twice": IDS + field(15, field(2, b"a")) + TEXT + field(15, b"\x18\x02"),
    "no ids": TEXT,
    "short parent": IDS + TEXT + field(4, b"p"),
}


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("case", ODD_SPANS)
def test_c7_pieces_of_an_odd_span_are_judged_as_the_whole(case: str, piece: int) -> None:
    """Unknown fields, groups, overlong numbers, duplicate and cut fields are read as protobuf reads them."""
    compare(surround(ODD_SPANS[case]), piece)


@pytest.mark.parametrize("piece", PIECES)
def test_c7_resource_and_scope_that_come_in_parts_are_merged(piece: int) -> None:
    """A resource and a scope that are given twice are merged as protobuf merges them, even after their spans."""
    spans = field(2, IDS + TEXT)
    scope = field(1, field(1, b"first")) + spans + field(1, field(2, b"1.0")) + field(3, b"url")
    pair = field(1, field(1, b"k") + field(2, field(1, b"v")))
    compare(field(1, field(1, pair) + field(2, scope) + field(1, pair) + field(3, b"url") + GROUP), piece)


@pytest.mark.parametrize("depth", range(40, 50))
@pytest.mark.parametrize("piece", PIECES)
def test_c7_depth_is_limited_as_in_the_whole(depth: int, piece: int) -> None:
    """A value nested to protobuf's limit is accepted in pieces too, and one level more is not."""
    value = field(1, b"x")
    for _ in range(depth):
        value = field(5, field(1, value))
    compare(surround(IDS + field(9, field(1, b"k") + field(2, value))), piece)


def test_c5_one_large_span_passes_with_its_neighbours() -> None:
    """A span of 15 MiB is checked in pieces and comes out byte for byte, with the small spans around it."""
    body = make_payload(1, spans=3) + make_payload(2, text="x" * (15 << 20)) + make_payload(3, spans=2)
    checked = check_wire(body)
    assert (checked.payload, checked.spans, checked.refused_spans) == (body, 6, 0)
    assert [len(filed.span.SerializeToString()) > 15 << 20 for filed in iter_filed(body)] == [False] * 3 + [True] + [
        False
    ] * 2
