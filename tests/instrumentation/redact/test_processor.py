"""Spans of the real SDK, with secrets in every place a span has."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from spanreplay.redact import RedactingSpanProcessor, Redactor, RunRedactor

CANARY = "Sup3rS3cretpw"
LEAK = f"postgres://app:{CANARY}@db/main"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """An exporter that keeps the spans."""
    return InMemorySpanExporter()


@pytest.fixture
def make_provider(run: RunRedactor, exporter: InMemorySpanExporter) -> Iterator[Callable[..., TracerProvider]]:
    """Make real providers whose only processor is the redacting one."""
    providers = []

    def make(*, downstream: list[SpanProcessor] | None = None, **options: Any) -> TracerProvider:
        provider = TracerProvider(shutdown_on_exit=False, **options)
        behind = [*(downstream or []), SimpleSpanProcessor(exporter)]
        provider.add_span_processor(RedactingSpanProcessor(run, behind))
        providers.append(provider)
        return provider

    yield make
    for provider in providers:
        provider.shutdown()


def _raise_in_span(provider: TracerProvider) -> None:
    link = Link(SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1)), {"url": LEAK})
    tracer = provider.get_tracer("tracer " + LEAK, "1.0", attributes={"dsn": LEAK})
    with contextlib.suppress(ValueError), tracer.start_as_current_span("connect " + LEAK, links=[link]) as span:
        span.set_attribute("input.value", json.dumps({"args": json.dumps({"password": "a b c", "url": LEAK})}))
        nested: Any = {"password": "x y z", "deep": [{"url": LEAK}], "raw": b"\xff " + LEAK.encode()}
        span.set_attribute("mapping", nested)
        span.set_attribute("list", [LEAK, "b"])
        span.set_attribute(LEAK, 1)
        span.set_attribute("http.request.header.authorization", ["Custom abc"])
        span.add_event("event " + LEAK, {"detail": LEAK})
        raise ValueError("cannot connect to " + LEAK)


def test_r1_no_place_of_a_span_leaks(
    make_provider: Callable[..., TracerProvider], exporter: InMemorySpanExporter
) -> None:
    """Secrets in any part of a span that can hold text are missing from the OTLP bytes."""
    resource = Resource({"process.command_args": ["tool", "--api-key", "abcdef"], "dsn": LEAK, "kept": "yes"})
    _raise_in_span(make_provider(resource=resource))
    (span,) = exporter.get_finished_spans()
    wire = encode_spans([span]).SerializeToString()
    for secret in (CANARY, "a b c", "x y z", "Custom abc", "abcdef"):
        assert secret.encode() not in wire
    assert span.name.startswith("connect postgres://app:rdx-k")
    assert span.status.description is not None
    assert span.status.description.startswith("ValueError: cannot connect to postgres://app:rdx-k")
    assert [event.name.split()[0] for event in span.events] == ["event", "exception"]
    assert span.resource.attributes["kept"] == "yes"
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.version == "1.0"
    assert span.attributes is not None
    mapping: Any = span.attributes["mapping"]
    assert isinstance(mapping["raw"], bytes)
    assert wire.count(b"rdx-k") >= 12


def test_clean_span_arrives_unchanged(
    make_provider: Callable[..., TracerProvider], exporter: InMemorySpanExporter
) -> None:
    """A span without secrets is the same on the wire with and without the processor."""
    provider = make_provider(
        resource=Resource({"service.name": "agent"}, "https://schema"),
        span_limits=SpanLimits(max_span_attributes=3, max_events=2, max_links=1),
    )
    direct = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(direct))
    context = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1))
    tracer = provider.get_tracer("lib", "2", "https://scope")
    with (
        tracer.start_as_current_span("parent"),
        tracer.start_as_current_span("child", links=[Link(context, {"a": 1}), Link(context)]) as span,
    ):
        attributes: list[Any] = [1, 2.5, True, "x", [1, 2]]
        for index, attribute in enumerate(attributes):
            span.set_attribute(f"a{index}", attribute)
            span.add_event(f"e{index}", {"k": "v"})
        span.set_status(Status(StatusCode.ERROR, "it broke"))
    redacted, raw = exporter.get_finished_spans(), direct.get_finished_spans()
    assert encode_spans(redacted) == encode_spans(raw)
    assert [(s.dropped_attributes, s.dropped_events, s.dropped_links) for s in redacted] == [(2, 3, 1), (0, 0, 0)]
    assert redacted[0].resource is raw[0].resource


def test_span_of_our_own_scope_passes_untouched(
    make_provider: Callable[..., TracerProvider], exporter: InMemorySpanExporter
) -> None:
    """Boundary spans were redacted before their key was made, so nothing may change them afterwards."""
    with make_provider().get_tracer("spanreplay").start_as_current_span("call") as span:
        span.set_attribute("spanreplay.request", f'{{"x": "{LEAK}"}}')
    (forwarded,) = exporter.get_finished_spans()
    assert forwarded.attributes == {"spanreplay.request": f'{{"x": "{LEAK}"}}'}


def test_resource_of_our_own_span_is_redacted(
    make_provider: Callable[..., TracerProvider], exporter: InMemorySpanExporter
) -> None:
    """The resource comes from the environment, not from the recorder, so it is scanned for every span."""
    provider = make_provider(resource=Resource({"dsn": LEAK}))
    with provider.get_tracer("spanreplay").start_as_current_span("call") as span:
        span.set_attribute("spanreplay.name", "n")
    (forwarded,) = exporter.get_finished_spans()
    assert CANARY.encode() not in encode_spans([forwarded]).SerializeToString()
    assert forwarded.attributes == {"spanreplay.name": "n"}


class _Failing(SpanProcessor):
    """A processor that always fails."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise ZeroDivisionError

    def _on_ending(self, span: Any) -> None:
        raise ZeroDivisionError

    def on_end(self, span: ReadableSpan) -> None:
        raise ZeroDivisionError

    def shutdown(self) -> None:
        raise ZeroDivisionError

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        raise ZeroDivisionError


def test_failing_processor_harms_nobody(
    make_provider: Callable[..., TracerProvider], exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception of a processor after ours never reaches the agent, and other processors still get the span."""
    provider = make_provider(downstream=[_Failing()])
    for _ in range(3):
        with provider.get_tracer("t").start_as_current_span("span"):
            pass
    assert provider.force_flush() is False
    provider.shutdown()
    assert len(exporter.get_finished_spans()) == 3
    assert sum("_Failing.on_end" in record.getMessage() for record in caplog.records) == 1


def test_live_span_is_forwarded_unchanged(make_provider: Callable[..., TracerProvider]) -> None:
    """Processors that set attributes when a span starts or ends still work."""

    class Stamp(SpanProcessor):
        seen: list[Any] = []  # noqa: RUF012 - a test's notebook

        def on_start(self, span: Any, parent_context: Any = None) -> None:
            span.set_attribute("stamp", "s")
            self.seen.append(span)

        def on_end(self, span: ReadableSpan) -> None:
            self.seen.append(dict(span.attributes or {}))

    stamp = Stamp()
    with make_provider(downstream=[stamp]).get_tracer("t").start_as_current_span("span") as span:
        pass
    assert stamp.seen == [span, {"stamp": "s"}]


def test_r3_span_that_cannot_be_redacted_becomes_a_skeleton(
    monkeypatch: pytest.MonkeyPatch, exporter: InMemorySpanExporter
) -> None:
    """Ids, times and a mark are forwarded; the content is dropped, and the loss is counted."""
    processor = RedactingSpanProcessor(Redactor(b"k" * 32, "k").run(), [SimpleSpanProcessor(exporter)])

    def explode(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(processor, "_text", explode)
    provider = TracerProvider(shutdown_on_exit=False, resource=Resource({"spanreplay.run_id": "a" * 32}))
    provider.add_span_processor(processor)
    with provider.get_tracer("t").start_as_current_span("parent"):
        _raise_in_span(provider)
    child, parent = exporter.get_finished_spans()
    assert CANARY.encode() not in encode_spans([child, parent]).SerializeToString()
    assert child.attributes == {"spanreplay.redaction_error": True}
    assert (child.name, child.events, child.links, child.status.description) == ("redaction failed", (), (), None)
    assert child.parent is not None
    assert parent.context is not None
    assert child.parent.span_id == parent.context.span_id
    assert child.resource.attributes["spanreplay.run_id"] == "a" * 32
    assert None not in (child.start_time, child.end_time)
    assert processor.errors == 2
    provider.shutdown()


def test_r3_value_the_redactor_gives_up_on_costs_only_its_span(
    run: RunRedactor, make_provider: Callable[..., TracerProvider], exporter: InMemorySpanExporter
) -> None:
    """Attributes too deep to walk leave a skeleton of their span, and the next span is whole again."""
    deep: Any = "password=hunter2secret"
    for _ in range(400):
        deep = [deep]
    tracer = make_provider().get_tracer("t")
    with tracer.start_as_current_span("deep") as span:
        span.set_attribute("deep", deep)
    with tracer.start_as_current_span("next"):
        pass
    assert [span.name for span in exporter.get_finished_spans()] in (["redaction failed", "next"], ["deep", "next"])
    assert all("hunter2secret" not in repr(span.attributes) for span in exporter.get_finished_spans())


def test_lone_surrogates_do_not_cost_an_attribute(
    make_provider: Callable[..., TracerProvider], exporter: InMemorySpanExporter
) -> None:
    """The OTLP encoder drops text that is not Unicode, so it gets ours with the flaw replaced."""
    with make_provider().get_tracer("t").start_as_current_span("x\ud800") as span:
        span.set_attribute("a", ["ok \udfff", "é"])
    (forwarded,) = exporter.get_finished_spans()
    assert forwarded.name == "x?"
    assert forwarded.attributes == {"a": ("ok ?", "é")}
    assert b"ok ?" in encode_spans([forwarded]).SerializeToString()


def test_run_is_named_in_every_resource(run: RunRedactor, exporter: InMemorySpanExporter) -> None:
    """The run's name is merged into the resource of foreign spans, and redacted like the rest."""
    named = Resource({"spanreplay.run_id": "a" * 32, "user.id": LEAK})
    processor = RedactingSpanProcessor(run, [], run_resource=named)
    processor.add(SimpleSpanProcessor(exporter))
    provider = TracerProvider(shutdown_on_exit=False, resource=Resource({"service.name": "agent"}))
    provider.add_span_processor(processor)
    for scope in ("lib", "spanreplay"):
        with provider.get_tracer(scope).start_as_current_span("span"):
            pass
    for span in exporter.get_finished_spans():
        attributes = span.resource.attributes
        assert (attributes["service.name"], attributes["spanreplay.run_id"]) == ("agent", "a" * 32)
        assert CANARY not in str(attributes["user.id"])
    provider.shutdown()
