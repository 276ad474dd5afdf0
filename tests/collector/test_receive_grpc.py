"""OTLP over gRPC as clients see it: real channels, the real exporter."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from spanreplay_collector.collector import TlsFiles, Token
from support.certificates import make_certificates
from support.collector import RunningCollector, SwitchStore, count_spans, make_deep, make_payload, run_collector

MIB = 1 << 20
SERVICE = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
Export = Callable[..., bytes]


@pytest.fixture
def store() -> SwitchStore:
    return SwitchStore()


@pytest.fixture
def running(tmp_path: Path, store: SwitchStore) -> Iterator[RunningCollector]:
    with run_collector(tmp_path, store) as collector:
        yield collector


def open_channel(target: str, credentials: Any = None) -> Any:
    options = [("grpc.max_send_message_length", -1), ("grpc.enable_http_proxy", 0)]
    if credentials is None:
        return grpc.insecure_channel(target, options)
    return grpc.secure_channel(target, credentials, options)


@pytest.fixture
def export(running: RunningCollector) -> Iterator[Export]:
    with open_channel(running.grpc) as channel:
        yield channel.unary_unary(SERVICE)


def test_grpc_request_is_stored_byte_for_byte(running: RunningCollector, store: SwitchStore, export: Export) -> None:
    """For plain and gzip-compressed calls, the store gets the sender's bytes."""
    bodies = [make_payload(1, spans=3), make_payload(2)]
    assert ExportTraceServiceResponse.FromString(export(bodies[0])) == ExportTraceServiceResponse()
    export(bodies[1], compression=grpc.Compression.Gzip)
    running.flush()
    assert store.payloads() == bodies


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_c7_grpc_python_exporter(running: RunningCollector, store: SwitchStore, compression: Any) -> None:
    """The OpenTelemetry exporter delivers every span."""
    provider = TracerProvider(shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=running.grpc, insecure=True, compression=compression)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for number in range(20):
        provider.get_tracer("t").start_span(f"s{number}").end()
    provider.shutdown()
    running.flush()
    assert sum(map(count_spans, store.payloads())) == 20


def test_c5_grpc_five_megabytes_and_neighbours(running: RunningCollector, store: SwitchStore, export: Export) -> None:
    """Spans of 5 MB and 15 MiB arrive whole, with the small spans of their batches."""
    for number, size in enumerate((5_000_000, 15 * MIB), start=1):
        body = make_payload(number, text="x" * size) + make_payload(number + 10, spans=5)
        export(body)
        running.flush()
        assert store.payloads()[-1] == body


def test_grpc_partial_success_counts_refused_spans(export: Export) -> None:
    """Spans without valid ids are refused alone, and the sender is told their number."""
    request = ExportTraceServiceRequest.FromString(make_payload(1, spans=2))
    request.resource_spans[0].scope_spans[0].spans[0].span_id = b"short"
    answer = ExportTraceServiceResponse.FromString(export(request.SerializeToString()))
    assert answer.partial_success.rejected_spans == 1


def start(export: Any, body: bytes) -> Any:
    return export.future(body)


def refused(export: Export, body: bytes, **options: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        export(body, **options)
    return caught.value


@pytest.mark.parametrize(
    ("body", "compression", "code"),
    [
        pytest.param(b"\xff" * 40, None, "INVALID_ARGUMENT", id="garbage"),
        pytest.param(make_payload(1)[:-3], None, "INVALID_ARGUMENT", id="cut off"),
        pytest.param(
            make_payload(1, text="zz").replace(b"zz", b"\xff\xfe"), None, "INVALID_ARGUMENT", id="invalid UTF-8"
        ),
        pytest.param(make_deep(5000), None, "INVALID_ARGUMENT", id="deep"),
        pytest.param(bytes(65 * MIB), None, "RESOURCE_EXHAUSTED", id="too large"),
        pytest.param(bytes(300 * MIB), grpc.Compression.Gzip, "RESOURCE_EXHAUSTED", id="gzip bomb"),
    ],
)
def test_c7_grpc_refusals(
    running: RunningCollector, store: SwitchStore, export: Export, body: bytes, compression: Any, code: str
) -> None:
    """Invalid requests get a status and store nothing, and the next valid request works."""
    error = refused(export, body, compression=compression)
    assert error.code().name == code
    assert error.details()
    export(make_payload(1))
    running.flush()
    assert store.payloads() == [make_payload(1)]


@pytest.mark.parametrize("seed", range(4))
def test_r6_grpc_garbage_never_ends_the_process(running: RunningCollector, export: Export, seed: int) -> None:
    """After random and mutated messages, refused or accepted, a valid request works."""
    dice = random.Random(seed)
    for _ in range(40):
        body = bytearray(make_payload(3, spans=2)) if dice.random() < 0.5 else bytearray(dice.randbytes(300))
        body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
        error = start(export, bytes(body)).exception()
        assert error is None or error.code().name == "INVALID_ARGUMENT"
    export(make_payload(1))
    assert running.count("refused_requests_total", reason="INTERNAL") == 0


@pytest.mark.parametrize("signal", ["metrics.v1.Metrics", "logs.v1.Logs"])
def test_grpc_other_signals_are_thrown_away_quietly(running: RunningCollector, signal: str) -> None:
    """SDKs send metrics and logs by default; UNIMPLEMENTED would make them complain forever."""
    with open_channel(running.grpc) as channel:
        call = channel.unary_unary(f"/opentelemetry.proto.collector.{signal}Service/Export")
        assert b"thrown away" in call(b"whatever")


def test_r6_grpc_tokens(tmp_path: Path, store: SwitchStore) -> None:
    """No token, a wrong one and an expired one are UNAUTHENTICATED; a valid one files spans under its tenant."""
    tokens = (Token.of("s3cret", "acme"), Token.of("0ther", "umbrella"), Token.of("old", "acme", expires_at_s=1.0))
    with run_collector(tmp_path, store, tokens=tokens) as running:
        with open_channel(running.grpc) as channel:
            export = channel.unary_unary(SERVICE)
            wrong: list[tuple[tuple[str, str], ...]] = [
                (),
                (("authorization", "Bearer nope"),),
                (("authorization", "Bearer old"),),
                (("x-token", "s3cret"),),
            ]
            for metadata in wrong:
                assert refused(export, make_payload(1), metadata=metadata).code().name == "UNAUTHENTICATED"
            export(make_payload(2), metadata=(("authorization", "Bearer s3cret"),))
            export(make_payload(3), metadata=(("authorization", "Bearer 0ther"),))
        running.flush()
        assert (store.payloads("acme"), store.payloads("umbrella")) == ([make_payload(2)], [make_payload(3)])


def test_r6_grpc_tls(tmp_path: Path, store: SwitchStore) -> None:
    """A client certificate is accepted; a missing one, and plaintext on the TLS port, are not."""
    pem = make_certificates(tmp_path / "pem")
    tls = TlsFiles(pem.server_cert, pem.server_key, pem.ca)
    with run_collector(tmp_path / "data", store, tls=tls) as running:
        ca = pem.ca.read_bytes()
        known = grpc.ssl_channel_credentials(ca, pem.client_key.read_bytes(), pem.client_cert.read_bytes())
        target = f"localhost:{running.collector.grpc_port}"
        with open_channel(target, known) as channel:
            channel.unary_unary(SERVICE)(make_payload(1))
        for credentials in (grpc.ssl_channel_credentials(ca), None):
            with open_channel(target, credentials) as channel:
                error = refused(channel.unary_unary(SERVICE), make_payload(2), timeout=10)
                assert error.code().name in ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def read_retry_s(error: Any) -> int:
    trailers = dict(error.trailing_metadata())
    status = Status.FromString(trailers["grpc-status-details-bin"])
    retry = RetryInfo()
    assert status.code == error.code().value[0]
    assert status.details[0].Unpack(retry)
    return int(retry.retry_delay.seconds)


def test_c6_grpc_full_disk_says_when_to_come_back(tmp_path: Path, store: SwitchStore) -> None:
    """If the store is away and the log full: UNAVAILABLE with RetryInfo; nothing acknowledged is lost."""
    store.is_down = True
    acknowledged: list[bytes] = []
    with run_collector(tmp_path, store, log_bytes_max=400_000, segment_bytes=50_000) as running:
        with open_channel(running.grpc) as channel:
            export = channel.unary_unary(SERVICE)
            for number in range(1, 200):
                body = make_payload(number, text="x" * 10_000)
                error = start(export, body).exception()
                if error:
                    break
                acknowledged.append(body)
            assert error is not None
            assert error.code().name == "UNAVAILABLE"
            assert read_retry_s(error) > 0
        assert 20 < len(acknowledged) < 50
        store.is_down = False
        running.flush()
        assert store.payloads() == acknowledged


def test_c6_grpc_too_much_at_once_says_when_to_come_back(tmp_path: Path, store: SwitchStore) -> None:
    """Above the limit of bytes in flight: RESOURCE_EXHAUSTED with RetryInfo, which OTLP clients retry."""
    body = make_payload(1, text="x" * 400_000)
    with run_collector(tmp_path, store, inflight_bytes_max=500_000) as running:
        with open_channel(running.grpc) as channel:
            export = channel.unary_unary(SERVICE)
            errors: list[Any] = []
            for _ in range(50):
                calls = [start(export, body) for _ in range(20)]
                errors += [error for error in (call.exception() for call in calls) if error]
                if errors:
                    break
        assert {error.code().name for error in errors} == {"RESOURCE_EXHAUSTED"}
        assert all(read_retry_s(error) > 0 for error in errors)
