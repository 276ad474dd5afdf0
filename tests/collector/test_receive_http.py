"""OTLP over HTTP as clients see it: real sockets, real exporters."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import zstandard
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from spanreplay_collector import limits
from spanreplay_collector.collector import Token
from support.collector import (
    RunningCollector,
    SwitchStore,
    count_spans,
    make_deep,
    make_payload,
    run_collector,
    wait_until,
)

PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json"}
MIB = 1 << 20


@pytest.fixture
def store() -> SwitchStore:
    return SwitchStore()


@pytest.fixture
def running(tmp_path: Path, store: SwitchStore) -> Iterator[RunningCollector]:
    with run_collector(tmp_path, store) as collector:
        yield collector


def post(running: RunningCollector, body: bytes, headers: dict[str, str], path: str = "/v1/traces") -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=30) as client:
        return client.post(running.http + path, content=body, headers=headers)


def is_alive(running: RunningCollector) -> bool:
    with httpx.Client(trust_env=False, timeout=30) as client:
        return client.get(running.http + "/healthz").text == "ok\n"


def test_http_protobuf_is_stored_byte_for_byte(running: RunningCollector, store: SwitchStore) -> None:
    """The answer is an empty ExportTraceServiceResponse, and the store gets the sender's bytes."""
    body = make_payload(1, spans=3)
    answer = post(running, body, {"content-type": "application/x-protobuf; charset=utf-8"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-protobuf")
    assert ExportTraceServiceResponse.FromString(answer.content) == ExportTraceServiceResponse()
    running.flush()
    assert store.payloads() == [body]


def test_c7_http_nul_is_stored_byte_for_byte(running: RunningCollector, store: SwitchStore) -> None:
    """NUL in a text and in a name is accepted uncut, and the process survives."""
    body = make_payload(1, text="a\0b", attributes={"na\0me": "\0"})
    assert post(running, body, PROTOBUF).status_code == 200
    assert is_alive(running)
    running.flush()
    assert store.payloads() == [body]


def test_http_json_is_answered_in_json(running: RunningCollector, store: SwitchStore) -> None:
    """OTLP/JSON with hexadecimal ids arrives as the same span as protobuf."""
    span = {"traceId": "0a" * 16, "spanId": "0b" * 8, "name": "from a browser"}
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    answer = post(running, body, {"content-type": "application/json; charset=utf-8"})
    assert (answer.status_code, answer.json()) == (200, {})
    running.flush()
    stored = ExportTraceServiceRequest.FromString(store.payloads()[0]).resource_spans[0].scope_spans[0].spans[0]
    assert (stored.trace_id, stored.span_id, stored.name) == (b"\n" * 16, b"\v" * 8, "from a browser")


@pytest.mark.parametrize("compression", list(Compression), ids=lambda c: str(c.value))
def test_c7_http_python_exporter(running: RunningCollector, store: SwitchStore, compression: Compression) -> None:
    """The OpenTelemetry exporter, in each of its compressions, delivers every span."""
    provider = TracerProvider(resource=Resource({"service.name": "agent"}), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=running.http + "/v1/traces", compression=compression)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for number in range(20):
        with provider.get_tracer("t").start_as_current_span(f"s{number}", attributes={"text": "ü" * 1000}):
            pass
    provider.shutdown()
    running.flush()
    assert sum(map(count_spans, store.payloads())) == 20


def test_c5_http_five_megabytes_and_neighbours(running: RunningCollector, store: SwitchStore) -> None:
    """A 5 MB span and a 15 MiB span arrive whole, with the small spans of their batches."""
    for number, size in enumerate((5_000_000, 15 * MIB), start=1):
        request = ExportTraceServiceRequest()
        request.MergeFromString(make_payload(number, text="x" * size))
        request.MergeFromString(make_payload(number + 10, spans=5))
        body = request.SerializeToString()
        assert post(running, body, PROTOBUF).status_code == 200
        running.flush()
        assert store.payloads()[-1] == body


def test_c5_http_json_of_nearly_16_mib_and_neighbours(running: RunningCollector, store: SwitchStore) -> None:
    """SDKs that send JSON (those of browsers and Node.js by default) get a large span and its batch through, too."""
    spans = [{"traceId": "0a" * 16, "spanId": f"{number:016x}", "name": str(number)} for number in range(1, 6)]
    spans[2]["name"] = "x" * (16 * MIB - 1) + "y"
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    assert post(running, body, JSON).status_code == 200
    running.flush()
    stored = ExportTraceServiceRequest.FromString(store.payloads()[0]).resource_spans[0].scope_spans[0].spans
    assert [span.name for span in stored] == [span["name"] for span in spans]


@pytest.mark.parametrize("before", ["/api/public/otel", "/otel", "/opentelemetry", "/agents/otel", "/a/b/c"])
def test_c5_http_paths_that_sdks_put_before_otlps_own(
    running: RunningCollector, store: SwitchStore, before: str
) -> None:
    """An SDK of another tool adds its server's path to the address; each signal is answered as at its usual place."""
    body = make_payload(1)
    assert post(running, body, PROTOBUF, before + "/v1/traces").status_code == 200
    for signal in ("metrics", "logs"):
        assert post(running, b"", PROTOBUF, f"{before}/v1/{signal}").status_code == 200
    assert post(running, body, PROTOBUF, f"{before}/v1/traces/more").status_code == 404
    running.flush()
    assert store.payloads() == [body]


def test_http_partial_success_counts_refused_spans(running: RunningCollector, store: SwitchStore) -> None:
    """Spans without valid ids are refused alone, and the sender is told their number."""
    request = ExportTraceServiceRequest.FromString(make_payload(1, spans=2))
    request.resource_spans[0].scope_spans[0].spans[0].trace_id = b""
    answer = post(running, request.SerializeToString(), PROTOBUF)
    partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert (answer.status_code, partial.rejected_spans) == (200, 1)
    assert "trace_id" in partial.error_message
    running.flush()
    assert sum(map(count_spans, store.payloads())) == 1


REFUSED: dict[str, tuple[str, str, dict[str, str], bytes, int]] = {
    "wrong path": ("POST", "/v2/traces", PROTOBUF, b"", 404),
    "wrong method": ("GET", "/v1/traces", {}, b"", 405),
    "delete": ("DELETE", "/healthz", {}, b"", 405),
    "no content type": ("POST", "/v1/traces", {}, make_payload(1), 415),
    "wrong content type": ("POST", "/v1/traces", {"content-type": "text/plain"}, make_payload(1), 415),
    "unknown encoding": ("POST", "/v1/traces", {**PROTOBUF, "content-encoding": "br"}, b"xx", 415),
    "not gzip": ("POST", "/v1/traces", {**PROTOBUF, "content-encoding": "gzip"}, b"xx", 400),
    "garbage": ("POST", "/v1/traces", PROTOBUF, b"\xff" * 50, 400),
    "cut off": ("POST", "/v1/traces", PROTOBUF, make_payload(1)[:-3], 400),
    "invalid UTF-8": (
        "POST",
        "/v1/traces",
        PROTOBUF,
        make_payload(1, text="zzzz").replace(b"zzzz", b"\xff\xfe\xff\xfe"),
        400,
    ),
    "deep": ("POST", "/v1/traces", PROTOBUF, make_deep(5000), 400),
    "garbage JSON": ("POST", "/v1/traces", JSON, b"{", 400),
    "too large": ("POST", "/v1/traces", PROTOBUF, bytes(65 * MIB), 413),
    "deep JSON": ("POST", "/v1/traces", JSON, b"[" * 100_000 + b"]" * 100_000, 400),
    "too large JSON": ("POST", "/v1/traces", JSON, b" " * (33 * MIB), 413),
    "gzip bomb": (
        "POST",
        "/v1/traces",
        {**PROTOBUF, "content-encoding": "gzip"},
        gzip.compress(bytes(300 * MIB), 1),
        413,
    ),
    "zstd bomb": (
        "POST",
        "/v1/traces",
        {**PROTOBUF, "content-encoding": "zstd"},
        zstandard.compress(bytes(300 * MIB)),
        413,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_c7_http_refusals(running: RunningCollector, store: SwitchStore, case: str) -> None:
    """Each invalid request gets its status with one clear line in its own encoding, and the process survives."""
    method, path, headers, body, status = REFUSED[case]
    with httpx.Client(trust_env=False, timeout=60) as client:
        answer = client.request(method, running.http + path, content=body, headers=headers)
    assert answer.status_code == status
    if headers.get("content-type") == "application/x-protobuf":
        assert Status.FromString(answer.content).message
    elif headers.get("content-type") == "application/json":
        assert answer.json()["message"]
    else:
        assert answer.text.strip()
    assert is_alive(running)
    assert store.payloads() == []


@pytest.mark.parametrize("path", ["/v1/metrics", "/v1/logs"])
def test_http_other_signals_are_thrown_away_quietly(running: RunningCollector, path: str) -> None:
    """SDKs send metrics and logs by default; an error would make them complain forever."""
    answer = post(running, b"whatever", PROTOBUF, path)
    assert answer.status_code == 200
    assert b"thrown away" in answer.content
    assert running.count("discarded_requests_total", signal=path[4:]) == 1


def send_raw(running: RunningCollector, data: bytes) -> bytes:
    address = urlsplit(running.http)
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=20) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            parts = []
            while part := sock.recv(65536):
                parts.append(part)
        except OSError:  # the server closed the connection: an answer too
            return b""
        return b"".join(parts)


def test_c7_http_body_cut_off_is_not_acknowledged(running: RunningCollector, store: SwitchStore) -> None:
    """A connection that ends inside a body stores nothing, even if the part that arrived is a valid request."""
    part = make_payload(1)
    head = b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n"
    by_length = send_raw(running, head + b"content-length: 5000\r\n\r\n" + part)
    packed = gzip.compress(part)[:-4]
    chunked = send_raw(
        running,
        head + b"content-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n" % len(packed) + packed + b"\r\n",
    )
    assert b" 200 " not in by_length + chunked
    assert is_alive(running)
    running.flush()
    assert store.payloads() == []


def test_c7_http_chunked_bodies_are_read(running: RunningCollector, store: SwitchStore) -> None:
    """A body without a stated length is accepted, and limited all the same."""

    def chunks(body: bytes) -> Iterator[bytes]:
        for first in range(0, len(body), 65536):
            yield body[first : first + 65536]

    with httpx.Client(trust_env=False, timeout=60) as client:
        url = running.http + "/v1/traces"
        body = make_payload(1, text="x" * 200_000)
        assert client.post(url, content=chunks(body), headers=PROTOBUF).status_code == 200
        assert client.post(url, content=chunks(bytes(66 * MIB)), headers=PROTOBUF).status_code == 413
    running.flush()
    assert store.payloads() == [body]


@pytest.mark.parametrize("seed", range(6))
def test_r6_http_garbage_never_ends_the_process(running: RunningCollector, seed: int) -> None:
    """After random bytes as requests, bodies and headers, refused or ignored, a valid request works."""
    dice = random.Random(seed)
    for _ in range(20):
        send_raw(running, dice.randbytes(dice.randrange(2000)))
        headers = {
            "content-type": dice.choice([*PROTOBUF.values(), *JSON.values()]),
            "content-encoding": dice.choice(["gzip", "deflate", "zstd", "", "identity"]),
            "authorization": "Bearer " + "".join(chr(dice.randrange(33, 126)) for _ in range(30)),
        }
        assert post(running, dice.randbytes(dice.randrange(3000)), headers).status_code in (200, 400)
    assert post(running, make_payload(1), PROTOBUF).status_code == 200
    assert running.count("refused_requests_total", reason="500") == 0


def test_r6_http_tokens(tmp_path: Path, store: SwitchStore) -> None:
    """No token, a wrong one and an expired one are refused; a valid one files spans under its tenant."""
    tokens = (Token.of("s3cret", "acme"), Token.of("0ther", "umbrella"), Token.of("old", "acme", expires_at_s=1.0))
    with run_collector(tmp_path, store, tokens=tokens) as running:
        refused: list[dict[str, str]] = [
            {},
            {"authorization": "Bearer nope"},
            {"authorization": "Bearer old"},
            {"authorization": "Basic s3cret"},
            {"authorization": "Bearer"},
        ]
        for headers in refused:
            answer = post(running, make_payload(1), {**PROTOBUF, **headers})
            assert answer.status_code == 401
            assert "s3cret" not in answer.text
            assert post(running, b"", {**PROTOBUF, **headers}, "/v1/metrics").status_code == 401
        with httpx.Client(trust_env=False) as client:
            assert client.get(running.http + "/metrics").status_code == 401
            assert client.get(running.http + "/healthz").status_code == 200
        for number, (secret, tenant) in enumerate((("s3cret", "acme"), ("0ther", "umbrella"))):
            body = make_payload(number + 5)
            assert post(running, body, {**PROTOBUF, "authorization": f"bearer {secret}"}).status_code == 200
            running.flush()
            assert store.payloads(tenant) == [body]


def test_c6_http_full_disk_says_when_to_come_back(tmp_path: Path, store: SwitchStore) -> None:
    """If the store is away and the log full: 503 with Retry-After; afterwards everything acknowledged is loaded."""
    store.is_down = True
    acknowledged: list[bytes] = []
    with run_collector(tmp_path, store, log_bytes_max=400_000, segment_bytes=50_000) as running:
        for number in range(1, 200):
            body = make_payload(number, text="x" * 10_000)
            answer = post(running, body, PROTOBUF)
            if answer.status_code != 200:
                break
            acknowledged.append(body)
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert 20 < len(acknowledged) < 50
        store.is_down = False
        running.flush()
        assert post(running, make_payload(999), PROTOBUF).status_code == 200
        running.flush()
        assert store.payloads() == [*acknowledged, make_payload(999)]


def test_c6_http_too_much_at_once_says_when_to_come_back(tmp_path: Path, store: SwitchStore) -> None:
    """Above the limit of bytes in flight: 429 with Retry-After, while a slow sender holds its share."""
    with run_collector(tmp_path, store, inflight_bytes_max=1_000_000) as running:
        body = make_payload(1, text="x" * 900_000)
        with contextlib.closing(start_upload(running, body, part=890_000)) as slow:
            wait_until(lambda: "spanreplay_inflight_bytes 0" not in running.collector.metrics.render())
            small = make_payload(2, text="x" * 200_000)
            answer = post(running, small, PROTOBUF)
            assert (answer.status_code, int(answer.headers["retry-after"]) > 0) == (429, True)
            slow.send(body[890_000:])
            assert slow.getresponse().status == 200
        assert post(running, small, PROTOBUF).status_code == 200


def start_upload(running: RunningCollector, body: bytes, part: int) -> http.client.HTTPConnection:
    address = urlsplit(running.http)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
    connection.putrequest("POST", "/v1/traces")
    connection.putheader("content-type", "application/x-protobuf")
    connection.putheader("content-length", str(len(body)))
    connection.endheaders(body[:part])
    return connection


def test_r6_http_slow_sender_is_cut_off(
    running: RunningCollector, store: SwitchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that does not arrive is answered 408, and its share of memory is released."""
    monkeypatch.setattr(limits, "BODY_TIMEOUT_S", 0.1)
    slow = start_upload(running, make_payload(1, text="x" * 10_000), part=500)
    assert slow.getresponse().status == 408
    slow.close()
    page = running.collector.metrics.render()
    assert "spanreplay_inflight_bytes 0" in page
    assert store.payloads() == []


def test_http_stops_while_clients_hang(tmp_path: Path, store: SwitchStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections and unfinished uploads do not keep the collector from stopping."""
    monkeypatch.setattr(limits, "STOP_GRACE_S", 0.2)
    with run_collector(tmp_path, store) as running:
        idle = http.client.HTTPConnection("127.0.0.1", running.collector.http_port, timeout=20)
        idle.request("GET", "/healthz")
        assert idle.getresponse().read() == b"ok\n"
        hanging = start_upload(running, make_payload(1, text="x" * 10_000), part=500)
        assert post(running, make_payload(2), PROTOBUF).status_code == 200
    idle.close()
    hanging.close()
    assert store.payloads() == [make_payload(2)]


def test_http_many_clients_at_once(running: RunningCollector, store: SwitchStore) -> None:
    """Each acknowledged request of many concurrent senders is stored once."""
    bodies = [make_payload(number, spans=3) for number in range(1, 201)]
    with ThreadPoolExecutor(8) as pool, httpx.Client(trust_env=False, timeout=30) as client:

        def send(body: bytes) -> int:
            return client.post(running.http + "/v1/traces", content=body, headers=PROTOBUF).status_code

        assert set(pool.map(send, bodies)) == {200}
    running.flush()
    assert sorted(store.payloads()) == sorted(bodies)


def test_http_metrics_page(running: RunningCollector) -> None:
    """Counters and gauges in the Prometheus text format, each described."""
    post(running, make_payload(1, spans=4), PROTOBUF)
    with httpx.Client(trust_env=False) as client:
        page = client.get(running.http + "/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = page.text.splitlines()
    assert "spanreplay_received_spans_total 4" in lines
    assert 'spanreplay_received_requests_total{transport="http"} 1' in lines
    named = {line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")}
    described = {line.split(" ")[2] for line in lines if line.startswith("# TYPE")}
    assert named == described


def make_http_client(**settings: Any) -> httpx.Client:
    return httpx.Client(trust_env=False, timeout=20, **settings)


def test_r6_http_tls(tmp_path: Path, store: SwitchStore) -> None:
    """With TLS and a client CA, a client certificate is accepted; plaintext and a missing certificate are not."""
    from spanreplay_collector.collector import TlsFiles
    from support.certificates import make_certificates

    pem = make_certificates(tmp_path / "pem")
    tls = TlsFiles(pem.server_cert, pem.server_key, pem.ca)
    with run_collector(tmp_path / "data", store, tls=tls) as running:
        url = running.http.replace("http:", "https:") + "/healthz"
        with make_http_client(verify=_context(pem.ca, (pem.client_cert, pem.client_key))) as client:
            assert client.get(url).status_code == 200
        with make_http_client(verify=_context(pem.ca, None)) as client, pytest.raises(httpx.TransportError):
            client.get(url)
        with make_http_client() as client, pytest.raises(httpx.TransportError):
            client.get(running.http + "/healthz")


def _context(ca: Path, client: tuple[Path, Path] | None) -> Any:
    import ssl

    context = ssl.create_default_context(cafile=str(ca))
    if client:
        context.load_cert_chain(*map(str, client))
    return context
