"""The fan-out when Phoenix is slow, away, full or refuses us: bounded, lossy, never blocking.

A local HTTP server simulates faults that a healthy Phoenix does not show; test_phoenix_contract.py uses the
real one.
"""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.model import attributes as names
from spanreplay.model.errors import AccessDenied, ConfigError, ServiceError, ServiceUnavailable
from spanreplay.recording.otlp.otlp import decode_attributes
from spanreplay_collector.log.segment_log import SegmentLog
from spanreplay_collector.metrics import Metrics
from spanreplay_collector.phoenix.fanout import PhoenixAnnotator, PhoenixFanout
from support.collector import WAIT_S, SwitchStore, make_payload, run_collector, wait_until
from support.ports import free_port

Answer = Callable[[ExportTraceServiceRequest], int]


class Faulty:
    """The requests received, and the status for the next request."""

    def __init__(self) -> None:
        self.answer: Answer = lambda _: 200
        self.spans: list[str] = []
        self.projects: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.posts = 0
        self.url = ""

    def take(self, body: bytes, headers: dict[str, str]) -> int:
        self.posts += 1
        self.headers.append(headers)
        request = ExportTraceServiceRequest.FromString(gzip.decompress(body))
        status = self.answer(request)
        if status == 200:
            for batch in request.resource_spans:
                self.projects.append(str(decode_attributes(batch.resource.attributes)[names.PROJECT]))
                self.spans += [span.name for scope in batch.scope_spans for span in scope.spans]
        return status


@contextmanager
def serve_faulty(port: int = 0) -> Iterator[Faulty]:
    faulty = Faulty()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = 400
            if self.path == "/prefix/v1/traces":
                status = faulty.take(body, {k.lower(): v for k, v in self.headers.items()})
            elif self.path.startswith("/prefix/v1/span_annotations"):
                status = faulty.answer(ExportTraceServiceRequest())
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    faulty.url = f"http://127.0.0.1:{server.server_port}/prefix"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield faulty
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def run_fanout(
    directory: Path, url: str, metrics: Metrics, *, lag: int = 1 << 20, **options: int
) -> Iterator[tuple[SegmentLog, PhoenixFanout]]:
    log = SegmentLog(directory, cursors={"loader": None, "phoenix": lag}, metrics=metrics, **options)
    fanout = PhoenixFanout(log, url, "s3cret", metrics, hold_s=0.01, backoff_s=(0.001, 0.01), breaker_s=0.01)
    fanout.start()
    try:
        yield log, fanout
    finally:
        fanout.stop()
        log.close()


def append(log: SegmentLog, *payloads: bytes) -> None:
    async def run() -> None:
        for payload in payloads:
            await log.append("t", payload)

    asyncio.run(run())


def test_fanout_sends_as_phoenix_wants_it(tmp_path: Path) -> None:
    """Requests are exactly `application/x-protobuf`, gzip, our token, no x-project-name, with every span once."""
    metrics = Metrics()
    with serve_faulty() as faulty, run_fanout(tmp_path, faulty.url, metrics) as (log, fanout):
        append(log, *[make_payload(n, spans=2) for n in range(1, 30)])
        assert fanout.flush(WAIT_S)
    assert sorted(faulty.spans) == sorted(f"span {n}.{place}" for n in range(1, 30) for place in (0, 1))
    assert set(faulty.projects) == {"agent"}
    headers = faulty.headers[0]
    assert headers["content-type"] == "application/x-protobuf"
    assert headers["content-encoding"] == "gzip"
    assert headers["authorization"] == "Bearer s3cret"
    assert "x-project-name" not in headers
    assert metrics.value("phoenix_sent_spans_total") == 58


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_fanout_tries_again(tmp_path: Path, status: int) -> None:
    """After a full queue or a proxy's error the fan-out retries, and nothing is dropped."""
    metrics = Metrics()
    with serve_faulty() as faulty, run_fanout(tmp_path, faulty.url, metrics) as (log, fanout):
        faulty.answer = lambda _: status if faulty.posts <= 3 else 200
        append(log, make_payload(1))
        assert fanout.flush(WAIT_S)
    assert faulty.spans == ["span 1.0"]
    assert metrics.value("phoenix_retries_total") == 3


def test_fanout_leaves_out_only_the_span_that_phoenix_refuses(tmp_path: Path) -> None:
    """Neighbours of a refused span in its batch are shown."""
    metrics = Metrics()

    def refuse_seven(request: ExportTraceServiceRequest) -> int:
        spans = request.resource_spans[0].scope_spans[0].spans
        return 422 if any(span.name == "span 1.7" for span in spans) else 200

    with serve_faulty() as faulty, run_fanout(tmp_path, faulty.url, metrics) as (log, fanout):
        faulty.answer = refuse_seven
        append(log, make_payload(1, spans=20))
        assert fanout.flush(WAIT_S)
    assert sorted(faulty.spans) == sorted(f"span 1.{n}" for n in range(20) if n != 7)
    assert metrics.value("phoenix_dropped_spans_total", reason="422") == 1


@pytest.mark.parametrize("status", [401, 403])
def test_r6_fanout_breaker_opens_and_closes(tmp_path: Path, status: int, caplog: pytest.LogCaptureFixture) -> None:
    """A refused token is reported once and shown as a gauge, and sending resumes when it is accepted again."""
    metrics = Metrics()
    with serve_faulty() as faulty, run_fanout(tmp_path, faulty.url, metrics) as (log, fanout):
        faulty.answer = lambda _: status
        append(log, make_payload(1))
        wait_until(lambda: faulty.posts > 3)
        assert "spanreplay_phoenix_breaker_open 1" in metrics.render()
        faulty.answer = lambda _: 200
        assert fanout.flush(WAIT_S)
        assert "spanreplay_phoenix_breaker_open 0" in metrics.render()
    assert faulty.spans == ["span 1.0"]
    assert sum("refuses our token" in record.getMessage() for record in caplog.records) == 1


def test_c6_fanout_survives_an_absence_and_goes_on_where_it_was(tmp_path: Path) -> None:
    """If Phoenix starts later than the collector, which restarts meanwhile, every span still arrives."""
    metrics, port = Metrics(), free_port()
    url = f"http://127.0.0.1:{port}/prefix"
    with run_fanout(tmp_path, url, metrics) as (log, _):
        append(log, make_payload(1))
        wait_until(lambda: metrics.value("phoenix_retries_total") > 2)
    with run_fanout(tmp_path, url, metrics) as (log, fanout), serve_faulty(port) as faulty:
        append(log, make_payload(2))
        assert fanout.flush(WAIT_S)
    assert sorted(faulty.spans) == ["span 1.0", "span 2.0"]


def test_c6_fanout_skips_the_oldest_when_too_far_behind(tmp_path: Path) -> None:
    """While Phoenix is away the log does not grow for it; the spans that it misses are counted."""
    metrics, port = Metrics(), free_port()
    url = f"http://127.0.0.1:{port}/prefix"
    with run_fanout(tmp_path, url, metrics, lag=50_000, segment_bytes=10_000) as (log, fanout):
        for number in range(1, 101):
            append(log, make_payload(number, text="x" * 5000))
            log.advance(log.cursor("loader"), log.end)
        assert log.bytes_on_disk <= 50_000
        with serve_faulty(port) as faulty:
            assert fanout.flush(WAIT_S)
    assert "span 100.0" in faulty.spans
    assert len(faulty.spans) < 20
    assert metrics.value("phoenix_dropped_bytes_total") > 400_000


def test_c6_collector_acknowledges_and_loads_while_phoenix_is_away(tmp_path: Path) -> None:
    """Nothing waits for Phoenix, not even starting and stopping the collector."""
    import httpx

    store = SwitchStore()
    url = f"http://127.0.0.1:{free_port()}"
    with run_collector(tmp_path, store, phoenix_url=url) as running, httpx.Client(trust_env=False) as client:
        for number in range(1, 20):
            headers = {"content-type": "application/x-protobuf"}
            answer = client.post(running.http + "/v1/traces", content=make_payload(number), headers=headers)
            assert (answer.status_code, answer.headers["x-spanreplay-phoenix"]) == (200, url)
        running.flush()
    assert len(store.payloads()) == 19


@pytest.mark.parametrize("url", ["127.0.0.1:6006", "ftp://x", "http://", ""])
def test_fanout_refuses_a_url_that_is_none(tmp_path: Path, url: str) -> None:
    """An invalid URL is refused at the start, with an example of a valid one."""
    log = SegmentLog(tmp_path, cursors={"phoenix": 1})
    try:
        with pytest.raises(ConfigError) as caught:
            PhoenixFanout(log, url, "", Metrics())
        assert "http://127.0.0.1:6006" in caught.value.hint
    finally:
        log.close()


@pytest.mark.parametrize(
    ("status", "error"), [(401, AccessDenied), (403, AccessDenied), (422, ServiceError), (503, ServiceError)]
)
def test_annotator_maps_every_refusal(status: int, error: type[Exception]) -> None:
    """A verdict that could not be written raises an error of our own tree."""
    with serve_faulty() as faulty:
        faulty.answer = lambda _: status
        with pytest.raises(error):
            PhoenixAnnotator(faulty.url).annotate_verdict("ab" * 8, None, "identical", "", {})
    with pytest.raises(ServiceUnavailable):
        PhoenixAnnotator(faulty.url).annotate_verdict("ab" * 8, None, "identical", "", {})
