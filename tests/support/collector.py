"""A collector in a thread of the test's process, an in-memory store that can be switched off, and OTLP payloads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.model.errors import StoreError
from spanreplay.recording.otlp.otlp import encode_attributes
from spanreplay_collector.collector import Collector, CollectorSettings
from spanreplay_collector.loader import SpanStore
from spanreplay_collector.wire import make_header
from support.service import LoopThread

WAIT_S = 180.0


class SwitchStore:
    """An in-memory store, idempotent per token, that can be switched off and can refuse single payloads."""

    apart_spans = 0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens: set[str] = set()
        self.is_down = False
        self.attempts = 0
        self.loads: list[tuple[str, tuple[bytes, ...], str]] = []
        self.refused: set[bytes] = set()
        self.refusal: Exception = ValueError("no such column")

    def load(self, tenant: str, payloads: Sequence[bytes], token: str) -> int:
        """Keep payloads, or fail if told to."""
        with self._lock:
            self.attempts += 1
            if self.is_down:
                raise StoreError("connection refused")
            if self.refused.intersection(payloads):
                raise self.refusal
            if token in self._tokens:
                return 0
            self._tokens.add(token)
            self.loads.append((tenant, tuple(payloads), token))
            return sum(count_spans(payload) for payload in payloads)

    def ping(self) -> None:
        """Answer, or fail if told to."""
        if self.is_down:
            raise StoreError("connection refused")

    def payloads(self, tenant: str | None = None) -> list[bytes]:
        """Return everything stored, in the order of arrival."""
        with self._lock:
            return [p for name, held, _ in self.loads if tenant in (None, name) for p in held]


class RunningCollector:
    """A started collector; methods block until done."""

    def __init__(self, collector: Collector, loop: LoopThread) -> None:
        self.collector = collector
        self._loop = loop
        self.http = f"http://127.0.0.1:{collector.http_port}"
        self.grpc = f"127.0.0.1:{collector.grpc_port}"

    def flush(self) -> None:
        """Wait until everything acknowledged is in the store."""
        self._loop.run(self.collector.flush(WAIT_S))

    def flush_phoenix(self) -> None:
        """Wait until Phoenix has accepted everything acknowledged."""
        self._loop.run(self.collector.flush_phoenix(WAIT_S))

    def count(self, name: str, **labels: str) -> int:
        """Return the value of one of the collector's counters."""
        return self.collector.metrics.value(name, **labels)


@contextmanager
def run_collector(data_dir: Path, store: SpanStore, **settings: Any) -> Iterator[RunningCollector]:
    """Run a collector on free loopback ports."""
    loop = LoopThread()
    try:
        values = {"http_port": 0, "grpc_port": 0, "load_linger_s": 0.01, **settings}
        collector = Collector(CollectorSettings(data_dir, **values), store)
        loop.run(collector.start())
        try:
            yield RunningCollector(collector, loop)
        finally:
            loop.run(collector.stop())
    finally:
        loop.close()


def make_payload(
    number: int = 1,
    *,
    spans: int = 1,
    attributes: dict[str, Any] | None = None,
    resource: dict[str, Any] | None = None,
    text: str = "",
) -> bytes:
    """Return a request whose spans have ids derived from `number`."""
    request = ExportTraceServiceRequest()
    batch = request.resource_spans.add()
    batch.resource.attributes.extend(encode_attributes(resource or {"service.name": "agent"}))
    scope = batch.scope_spans.add()
    scope.scope.name = "test"
    for place in range(spans):
        span = scope.spans.add()
        span.trace_id = (number << 32 | 1).to_bytes(16, "big")
        span.span_id = (number << 20 | place + 1).to_bytes(8, "big")
        span.name = f"span {number}.{place}"
        span.start_time_unix_nano = 1_790_000_000_000_000_000 + number
        span.end_time_unix_nano = span.start_time_unix_nano + 1
        span.attributes.extend(encode_attributes({**(attributes or {}), **({"text": text} if text else {})}))
    return request.SerializeToString()


def make_deep(depth: int) -> bytes:
    """Return a request with a value nested `depth` levels deep, encoded by hand."""
    value = b""
    for _ in range(depth):
        value = _field(5, _field(1, value))
    return _field(1, _field(1, _field(1, _field(1, b"k") + _field(2, value))))


def _field(number: int, content: bytes) -> bytes:
    return make_header(number, len(content)) + content


def count_spans(payload: bytes) -> int:
    """Return the number of spans in a request."""
    request = ExportTraceServiceRequest.FromString(payload)
    return sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans)


def wait_until(condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
    """Poll a condition that another thread or process fulfils; fail after the timeout."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        pause.wait(0.005)
