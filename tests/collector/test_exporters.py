"""The exporters of other SDKs: a large span arrives whole, and so do the small spans of its batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from spanreplay_collector.wire import iter_filed
from support.collector import RunningCollector, SwitchStore, run_collector

SIZES = (5_000_000, 15 * 1024 * 1024)


def make_phoenix(name: str) -> Callable[[RunningCollector], SpanExporter]:
    def make(running: RunningCollector) -> SpanExporter:
        module: Any = pytest.importorskip("phoenix.otel")
        endpoint = running.http + "/v1/traces" if name == "HTTPSpanExporter" else f"http://{running.grpc}"
        made: SpanExporter = getattr(module, name)(endpoint=endpoint)
        return made

    return make


EXPORTERS: dict[str, Callable[[RunningCollector], SpanExporter]] = {
    "http": lambda running: HttpExporter(running.http + "/v1/traces"),
    "http gzip": lambda running: HttpExporter(running.http + "/v1/traces", compression=Compression.Gzip),
    "http deflate": lambda running: HttpExporter(running.http + "/v1/traces", compression=Compression.Deflate),
    "grpc": lambda running: GrpcExporter(running.grpc, insecure=True),
    "phoenix http": make_phoenix("HTTPSpanExporter"),
    "phoenix grpc": make_phoenix("GRPCSpanExporter"),
}


@pytest.mark.parametrize("name", EXPORTERS)
@pytest.mark.sampled(3)
def test_c5_exporter_brings_a_large_span_and_its_neighbours(name: str, tmp_path: Path) -> None:
    """For spans of 5 MB and 15 MiB in batches of five, every span arrives, the large text to its last character."""
    store = SwitchStore()
    with run_collector(tmp_path, store) as running:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(EXPORTERS[name](running)))
        tracer = provider.get_tracer("t")
        for size in SIZES:
            for place in range(5):
                text = "x" * (size - 1) + "!" if place == 2 else "small"
                tracer.start_span(f"{size} {place}", attributes={"text": text}).end()
            assert provider.force_flush()
        provider.shutdown()
        running.flush()
    spans = [filed.span for payload in store.payloads() for filed in iter_filed(payload)]
    assert sorted(span.name for span in spans) == sorted(f"{size} {place}" for size in SIZES for place in range(5))
    for span in spans:
        stated, _, where = span.name.partition(" ")
        text = span.attributes[0].value.string_value
        assert text == ("x" * (int(stated) - 1) + "!" if where == "2" else "small")
