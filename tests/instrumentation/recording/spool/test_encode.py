"""Encoding a span: a reader gets exactly what the SDK holds, and nothing makes it fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from spanreplay.recording.otlp.otlp import decode_attributes, iter_spans
from spanreplay.recording.spool import SpoolSpanProcessor, SpoolWriter, iter_frames
from spanreplay.recording.spool.encode import SpanEncoder, encode_span
from support.spool_tools import RUN

CONTEXT = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState([("a", "b")]))

_texts = st.text(st.characters(codec="utf-8"), max_size=30)
_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.binary(max_size=30), _texts
)
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_texts.filter(bool), inner, max_size=4)),
    max_leaves=10,
)


def _span(attributes: Mapping[str, Any] | None = None, **options: Any) -> ReadableSpan:
    """A finished span from a provider."""
    provider = TracerProvider(resource=options.pop("resource", Resource({"service.name": "trader"})))
    tracer = provider.get_tracer("spanreplay", "1.0", "https://schema", {"scope.attribute": 1})
    span = tracer.start_span("call", attributes=attributes, start_time=5, **options)
    span.end(end_time=9)
    provider.shutdown()
    assert isinstance(span, ReadableSpan)
    return span


def _decode(payload: bytes) -> dict[str, Any]:
    (filed,) = iter_spans(ExportTraceServiceRequest.FromString(payload))
    return decode_attributes(filed.span.attributes)


@settings(max_examples=150, deadline=None)
@given(attributes=st.dictionaries(_texts.filter(bool), _values, max_size=6))
def test_encoding_is_that_of_the_sdk_exporter(attributes: dict[str, Any]) -> None:
    """For any attributes that the SDK accepts, the message equals that of OpenTelemetry's exporter."""
    span = _span(attributes)
    ours = ExportTraceServiceRequest.FromString(encode_span(span))
    assert ours.SerializeToString(deterministic=True) == encode_spans([span]).SerializeToString(deterministic=True)


@pytest.mark.parametrize("kind", list(SpanKind), ids=lambda kind: str(kind.name))
def test_whole_span_equals_the_sdk_exporter(kind: SpanKind) -> None:
    """Kind, parent, events, links, status and schema of a span come through."""
    provider = TracerProvider(resource=Resource({"service.name": "trader", "list": ["a", "b"]}, "https://resource"))
    tracer = provider.get_tracer("spanreplay", "1.0", "https://schema", {"scope.attribute": 1})
    span = tracer.start_span(
        "call",
        context=set_span_in_context(NonRecordingSpan(CONTEXT)),
        kind=kind,
        links=[Link(SpanContext(3, 4, is_remote=False), {"link": True})],
        start_time=5,
    )
    span.add_event("exception", {"exception.message": "it broke"}, timestamp=6)
    span.set_status(Status(StatusCode.ERROR, "it broke"))
    span.end(end_time=9)
    provider.shutdown()
    assert isinstance(span, ReadableSpan)
    assert ExportTraceServiceRequest.FromString(encode_span(span)) == encode_spans([span])


def test_what_otlp_cannot_hold_becomes_text() -> None:
    """Lone surrogates, huge integers and deep nesting are replaced without an error."""
    deep: Any = "core"
    for _ in range(60):
        deep = [deep]
    span = _span({"lone": "a\ud800b", "k\udc00": ["\udfff"], "pair": "\ud83d\ude00", "big": 2**70, "deep": deep})
    read = _decode(encode_span(span))
    assert read["lone"] == "a\ufffdb"
    assert read["k\ufffd"] == ["\ufffd"]
    assert read["pair"] == "😀"
    assert read["big"] == str(2**70)
    for _ in range(16):
        (read["deep"],) = read["deep"]
    assert read["deep"] == "[" * 44 + '"core"' + "]" * 44


def test_names_with_lone_surrogates_are_cleaned() -> None:
    """Span, event and status texts that UTF-8 cannot hold don't lose the span."""
    span = ReadableSpan(
        "\ud800",
        CONTEXT,
        resource=Resource({"\ud800": "\ud800"}),
        instrumentation_scope=InstrumentationScope("\ud800", "\ud800"),
        status=Status(StatusCode.ERROR, "\ud800"),
    )
    (filed,) = iter_spans(ExportTraceServiceRequest.FromString(encode_span(span)))
    assert (filed.span.name, filed.scope, filed.span.status.message) == ("\ufffd", "\ufffd", "\ufffd")


def test_span_that_has_not_ended_ends_at_its_start() -> None:
    """The record of a call that was only started is valid."""
    span = ReadableSpan("call", CONTEXT, resource=Resource({}), start_time=7)
    (filed,) = iter_spans(ExportTraceServiceRequest.FromString(encode_span(span)))
    assert (filed.span.start_time_unix_nano, filed.span.end_time_unix_nano) == (7, 7)


def test_cache_of_resources_is_bounded_and_never_mixes() -> None:
    """A thousand resources, each with its own object, give a thousand different requests."""
    encoder = SpanEncoder()
    for n in range(1000):
        span = ReadableSpan("call", CONTEXT, resource=Resource({"n": n}))
        (filed,) = iter_spans(ExportTraceServiceRequest.FromString(encoder.encode(span)))
        assert filed.resource == {"n": n}
    assert len(encoder._resources) <= 256


def test_processor_records_every_sampled_span(tmp_path: Path) -> None:
    """Each span is in the spool when its `end` returns; unsampled spans are left out."""
    writer = SpoolWriter(tmp_path, RUN)
    provider = TracerProvider()
    provider.add_span_processor(SpoolSpanProcessor(writer))
    unsampled = TracerProvider(sampler=ALWAYS_OFF)
    unsampled.add_span_processor(SpoolSpanProcessor(writer))
    for n in range(3):
        with provider.get_tracer("t").start_as_current_span(f"call {n}"):
            pass
        with unsampled.get_tracer("t").start_as_current_span("not recorded"):
            pass
        assert writer.path is not None
        read = [iter_spans(ExportTraceServiceRequest.FromString(p)) for p in iter_frames(writer.path)]
        assert [next(spans).span.name for spans in read] == [f"call {i}" for i in range(n + 1)]
    assert provider.force_flush()
    provider.shutdown()
    unsampled.shutdown()


def test_processor_counts_what_it_cannot_encode(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A span that cannot be encoded is counted and reported once, and the agent goes on."""
    processor = SpoolSpanProcessor(SpoolWriter(tmp_path, RUN))
    for _ in range(2):
        processor.on_end(ReadableSpan("no context"))
    assert processor.dropped == 2
    assert len(caplog.records) == 1


def test_protobuf_is_not_imported_before_the_first_span() -> None:
    """Setting up the recorder does not import protobuf."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from spanreplay.recording.spool import SpoolWriter, SpoolSpanProcessor\n"
        "SpoolSpanProcessor(SpoolWriter(Path('x'), '0' * 32))\n"
        "print([m for m in sys.modules if m.startswith(('google.protobuf', 'opentelemetry.proto'))])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert out.stdout.strip() == "[]"
