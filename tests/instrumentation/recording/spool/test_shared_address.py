"""An address that the program exports to as well: it must identify itself before anything of ours is sent."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import TracerProvider

from spanreplay.recording.spool import SpoolSpanProcessor, SpoolWriter
from spanreplay.recording.spool.directory import ack_path, iter_spool_files
from spanreplay.recording.spool.target import target_of
from spanreplay.runtime.patches import Patches
from spanreplay.seams.telemetry.providers import watch_exporters
from support import otlp_sink
from support.collector import SwitchStore, run_collector
from support.otlp_sink import OtlpSink
from support.spool_tools import RUN, make_shipper, wait_until

LONG_MS = 30_000


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    """A backend that is not our collector."""
    with otlp_sink.serve() as running:
        yield running


def make_span(processor: SpoolSpanProcessor) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    provider.get_tracer("t").start_span("call").end()


def test_p9_foreign_backend_gets_nothing_and_files_lose_their_mark(
    sink: OtlpSink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is sent, now or by a later process; it is reported once, and recording continues."""
    processor = SpoolSpanProcessor(SpoolWriter(tmp_path, RUN), make_shipper(tmp_path, sink.endpoint))
    processor.doubt()
    make_span(processor)
    assert processor.force_flush(LONG_MS)
    make_span(processor)
    processor.shutdown()
    assert (sink.seen, sink.asked) == ([], ["/healthz"])
    (path,) = iter_spool_files(tmp_path)
    assert not ack_path(path).exists()
    assert processor.report is None
    assert len([r for r in caplog.records if "recordings stay on this machine" in r.getMessage()]) == 1


def test_p9_flush_ends_with_the_answer_that_it_waited_for(sink: OtlpSink, tmp_path: Path) -> None:
    """A flush that starts while a foreign backend is asked returns with its answer instead of at the deadline."""
    processor = SpoolSpanProcessor(SpoolWriter(tmp_path, RUN), make_shipper(tmp_path, sink.endpoint))
    processor.doubt()
    sink.says_who.clear()
    make_span(processor)
    wait_until(lambda: bool(sink.asked), "the backend to be asked")
    flushed: list[bool] = []
    flush = threading.Thread(target=lambda: flushed.append(processor.force_flush(LONG_MS)))
    flush.start()
    wait_until(lambda: _is_waiting(flush), "the flush to wait")
    sink.says_who.set()
    flush.join()
    assert flushed == [True]
    processor.shutdown()


def _is_waiting(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code is threading.Condition.wait.__code__


def test_p9_collector_that_is_away_is_asked_until_it_answers(tmp_path: Path) -> None:
    """While nobody answers the spans wait, marked for shipping; a collector of ours that comes up gets them."""
    reserved = otlp_sink.reserve_port()
    port = reserved.getsockname()[1]
    processor = SpoolSpanProcessor(SpoolWriter(tmp_path, RUN), make_shipper(tmp_path, otlp_sink.endpoint_of(reserved)))
    processor.doubt()
    make_span(processor)
    assert not processor.force_flush(LONG_MS)
    (path,) = iter_spool_files(tmp_path)
    assert ack_path(path).exists()
    reserved.close()
    store = SwitchStore()
    with run_collector(tmp_path / "collector", store, http_port=port) as running:
        wait_until(lambda: processor.force_flush(LONG_MS), "the collector to be asked again")
        running.flush()
    assert len(store.payloads()) == 1
    processor.shutdown()


@pytest.mark.parametrize(
    ("make", "is_noticed"),
    [
        (lambda: HttpExporter(endpoint="http://127.0.0.1:4318/v1/traces"), True),
        (lambda: HttpExporter(endpoint="http://127.0.0.1:4318/elsewhere"), True),
        (lambda: GrpcExporter(endpoint="127.0.0.1:4318", insecure=True), True),
        (lambda: GrpcExporter(endpoint="http://127.0.0.1:4318"), True),
        (lambda: HttpExporter(endpoint="http://127.0.0.1:4319/v1/traces"), False),
        (lambda: HttpExporter(endpoint="http://127.0.0.2:4318/v1/traces"), False),
        (lambda: GrpcExporter(endpoint="localhost:1", insecure=True), False),
    ],
    ids=["same", "another path", "grpc", "grpc by url", "another port", "another host", "grpc elsewhere"],
)
def test_p9_exporter_to_the_same_host_and_port_is_noticed(make: Any, is_noticed: bool) -> None:
    """An exporter to our host and port is noticed, over HTTP or gRPC, whatever the path."""
    patches = Patches()
    made: list[bool] = []
    watch_exporters(patches, target_of("http://127.0.0.1:4318"), lambda: made.append(True))
    try:
        make().shutdown()
    finally:
        patches.undo()
    assert made == [True] * is_noticed
