"""Content addressing is exact for any content, and small where content repeats."""

from __future__ import annotations

import base64
import itertools
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanreplay.model.errors import DamagedRecording
from spanreplay_collector.store.address import LITERAL_BYTES_MAX, PART_BYTES_MAX, address_span, cut_text, join
from support.otlp_strategies import chat_bodies, spans, texts

BLOB_PIECES = [
    '{"messages":[',
    '{"content":"' + "a" * 300,
    '{"b64":"',
    ";base64,",
    "A" * 4096,
    "B" * 9000,
    "==",
    "ü" * 300,
    '"},',
    "]}",
]
"""Pieces of text with blobs in it, which a test joins in wrong ways."""


def _span(**attributes: str) -> Span:
    return Span(
        span_id=b"12345678",
        attributes=[KeyValue(key=k, value=AnyValue(string_value=v)) for k, v in attributes.items()],
    )


def _stored(span: Span) -> dict[bytes, bytes]:
    blobs: dict[bytes, bytes] = {}
    address_span(span, blobs)
    return blobs


@given(spans)
def test_address_any_span_is_joined_byte_for_byte(span: Span) -> None:
    """Whatever a span holds, joining its parts gives its bytes."""
    blobs: dict[bytes, bytes] = {}
    addressed, size = address_span(span, blobs)
    raw = join(addressed.skeleton, addressed.cuts, addressed.parts, blobs)
    assert raw == span.SerializeToString()
    assert size == len(raw)


@given(chat_bodies() | texts, st.integers(1, 3))
def test_cut_text_ranges_ascend_within_the_text(text: str, times: int) -> None:
    """The parts of a text never overlap and never reach beyond it, also where characters take several bytes."""
    text = text * times
    size = len(text.encode())
    at = 0
    for start, end in cut_text(text):
        assert at <= start < end <= size
        at = end


@pytest.mark.parametrize(
    "text",
    [
        '{"messages":[' + '{"messages":[' * 3000,
        '"messages":[' * 5000,
        '{"messages":[' + "[" * 200_000,
        '{"messages":["' + "x" * 5000,
        '{"messages":[1,2,' + "9" * 10_000 + "]}",
        '{"messages":[{"content":"\\ud800' + "é" * 3000 + '"}]}',
    ],
    ids=["nested", "repeated", "deep", "unterminated", "huge_number", "lone_surrogate_escape"],
)
def test_address_hostile_text_is_joined_byte_for_byte(text: str) -> None:
    """Text made to confuse the cutting is still stored exactly."""
    blobs: dict[bytes, bytes] = {}
    span = _span(request=text, other=text)
    addressed, _ = address_span(span, blobs)
    assert join(addressed.skeleton, addressed.cuts, addressed.parts, blobs) == span.SerializeToString()


@pytest.mark.parametrize("content", ["plain text ", "größer “x” 𝔘 "], ids=["ascii", "unicode"])
@pytest.mark.parametrize("array", ["messages", "input", "tools", "contents"])
def test_address_grown_history_stores_only_what_is_new(array: str, content: str) -> None:
    """A call that resends a history of 40 messages and adds one costs about that one message."""
    history = [{"role": "user", "content": f"{number} {content * 40}"} for number in range(41)]
    first = _stored(_span(request=json.dumps({"body": {"model": "m", array: history[:40]}})))
    second = _stored(_span(request=json.dumps({"body": {"model": "m", array: history}})))
    new = sum(len(body) for part, body in second.items() if part not in first)
    assert new < 2 * len(json.dumps(history[40]))


@pytest.mark.parametrize(
    "before", ["", "x" * 700, '[{"text":"' + "y" * 300 + '"},'], ids=["first", "later", "in_array"]
)
def test_s18_address_an_image_is_one_part_wherever_it_stands(before: str) -> None:
    """The same image as a tool's result, in a message of the history and in another provider's form is stored once."""
    image = base64.b64encode(random.Random(7).randbytes(40_000)).decode()
    result = json.dumps({"value": {"$type": "bytes", "b64": image}}, separators=(",", ":"))
    message = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}],
    }
    inline = {"role": "user", "parts": [{"text": before}, {"inlineData": {"mimeType": "image/png", "data": image}}]}
    blobs: dict[bytes, bytes] = {}
    for text in (result, json.dumps({"a": before, "messages": [message]}), json.dumps({"contents": [inline, inline]})):
        span = _span(request=text)
        addressed, _ = address_span(span, blobs)
        assert join(addressed.skeleton, addressed.cuts, addressed.parts, blobs) == span.SerializeToString()
    assert [body for body in blobs.values() if image[100:200].encode() in body] == [image.encode()]


@given(st.lists(st.sampled_from(BLOB_PIECES), max_size=12))
def test_address_blobs_cut_anywhere_are_joined_byte_for_byte(pieces: list[str]) -> None:
    """Text in which blobs begin in one element and end in another, or never end, is stored exactly."""
    text = "".join(pieces)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(cut_text(text)))
    span = _span(request=text)
    blobs: dict[bytes, bytes] = {}
    addressed, _ = address_span(span, blobs)
    assert join(addressed.skeleton, addressed.cuts, addressed.parts, blobs) == span.SerializeToString()


def test_address_short_messages_are_grouped() -> None:
    """A history of many short messages takes fewer references than messages, and still grows cheaply."""
    history = [{"role": "user", "content": f"message {number}"} for number in range(200)]
    blobs: dict[bytes, bytes] = {}
    addressed, _ = address_span(_span(request=json.dumps({"messages": history})), blobs)
    assert len(addressed.parts) < 50
    grown = _stored(_span(request=json.dumps({"messages": [*history, {"role": "user", "content": "last"}]})))
    assert len(grown.keys() - blobs.keys()) <= 1


def test_address_large_value_is_cut_into_bounded_parts() -> None:
    """No part is larger than its limit, whether the value is text, bytes or a list of many small ones."""
    span = _span(request="x" * (3 * PART_BYTES_MAX + 5))
    span.attributes.append(KeyValue(key="b", value=AnyValue(bytes_value=b"\xff" * (PART_BYTES_MAX + 1))))
    many = span.attributes.add(key="many")
    many.value.array_value.values.extend(AnyValue(string_value=f"{n:0100d}") for n in range(30_000))
    blobs: dict[bytes, bytes] = {}
    addressed, size = address_span(span, blobs)
    assert max(map(len, blobs.values())) <= PART_BYTES_MAX
    assert len(addressed.skeleton) <= LITERAL_BYTES_MAX
    assert size > 6 * PART_BYTES_MAX
    assert join(addressed.skeleton, addressed.cuts, addressed.parts, blobs) == span.SerializeToString()


def test_join_missing_part_is_a_damaged_recording() -> None:
    """A part that is not in the store is an error, never a hole in a span."""
    blobs: dict[bytes, bytes] = {}
    addressed, _ = address_span(_span(request="x" * 5000), blobs)
    with pytest.raises(DamagedRecording, match="missing"):
        join(addressed.skeleton, addressed.cuts, addressed.parts, {})
