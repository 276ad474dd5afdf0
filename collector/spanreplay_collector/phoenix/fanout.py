"""The fan-out to Phoenix: its own cursor and thread, bounded and lossy, never blocking the collector.

Phoenix takes some 80 spans a second and loses acknowledged spans when it crashes: it is a view of the
recordings, not their store. When it is slow or unavailable, spans wait in the log up to a limit; beyond it
the oldest are skipped and counted.
"""

from __future__ import annotations

import gzip
import logging
import random
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanreplay_collector import limits
from spanreplay_collector.log.segment_log import Position, Record, SegmentLog
from spanreplay_collector.metrics import Metrics
from spanreplay_collector.phoenix.annotate import PhoenixAnnotator
from spanreplay_collector.phoenix.client import PhoenixClient
from spanreplay_collector.phoenix.traces import ReadySpan, TraceBook
from spanreplay_collector.phoenix.transform import build_request, present_span
from spanreplay_collector.wire import iter_spans

__all__ = ["CURSOR", "PhoenixAnnotator", "PhoenixFanout", "deep_link"]

logger = logging.getLogger(__name__)

CURSOR: Final = "phoenix"
_HEADERS: Final = {
    "content-type": "application/x-protobuf",  # Phoenix accepts exactly this, without a charset
    "content-encoding": "gzip",
}
_AGAIN_STATUSES: Final = frozenset({408, 429, 502, 503, 504})
_FAILURES_MAX: Final = 5
"""Internal errors of Phoenix for one request before the request is assumed to be the cause."""
_ShownSpan = tuple[str, Span]


def deep_link(base: str, span_id: str) -> str:
    """The URL that opens a span in Phoenix."""
    return f"{base.rstrip('/')}/redirects/spans/{span_id}"


class _Stopping(Exception):
    """The fan-out was stopped; the cursor stays before the first unsent span."""


class PhoenixFanout:
    """Follows the log and sends every span once. Raises: ConfigError if `url` is not an http(s) URL."""

    def __init__(
        self,
        log: SegmentLog,
        url: str,
        token: str,
        metrics: Metrics,
        *,
        hold_s: float = limits.PHOENIX_HOLD_S,
        backoff_s: tuple[float, float] = limits.PHOENIX_BACKOFF_S,
        breaker_s: float = limits.PHOENIX_BREAKER_S,
    ) -> None:
        self._log = log
        self._client = PhoenixClient(url, token)
        self._metrics = metrics
        self._backoff_s = backoff_s
        self._breaker_s = breaker_s
        self._book = TraceBook(hold_s=hold_s)
        self._cursor = log.cursor(CURSOR)
        self._stop = threading.Event()
        self._is_flushing = False
        self._is_breaker_open = False
        self._is_away = False
        self._thread = threading.Thread(target=self._run, name="spanreplay-phoenix", daemon=True)
        metrics.gauge("phoenix_breaker_open", lambda: float(self._is_breaker_open))

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def stop(self) -> None:
        """End after the request in progress; unsent spans are sent after the next start."""
        self._stop.set()
        self._log.wake_readers()
        self._thread.join(limits.PHOENIX_TIMEOUT_S + 5)
        self._client.close()

    def flush(self, timeout_s: float) -> bool:
        """Send everything acknowledged so far, without waiting for root spans; False if that took too long."""
        target = self._log.end
        self._is_flushing = True
        self._log.wake_readers()
        try:
            return self._log.wait_passed(self._cursor, target, timeout_s)
        finally:
            self._is_flushing = False

    def _run(self) -> None:
        position = self._log.position_of(self._cursor)
        while not self._stop.is_set():
            try:
                position = self._follow(position)
            except _Stopping:
                return
            except Exception:
                logger.exception("the Phoenix fan-out failed; it continues with the next spans")
                self._metrics.add("phoenix_dropped_spans_total", reason="failure")
                self._stop.wait(self._backoff_s[1])

    def _follow(self, position: Position) -> Position:
        position = max(position, self._log.position_of(self._cursor))
        batch = self._log.read(position, bytes_max=limits.PHOENIX_BATCH_BYTES, records_max=limits.PHOENIX_BATCH_SPANS)
        now_s = time.monotonic()
        is_caught_up = not batch.records
        ready: list[ReadySpan] = []
        for each in chain(
            chain.from_iterable(self._take_in(record, now_s) for record in batch.records),
            self._book.release_waiting(float("inf") if self._is_flushing and is_caught_up else now_s),
        ):
            ready.append(each)
            if len(ready) >= limits.PHOENIX_BATCH_SPANS:  # one record may hold a million
                self._send(ready)
                ready.clear()
        self._send(ready)
        done = min(batch.next, self._book.oldest_held() or batch.next)
        if done > self._log.position_of(self._cursor):
            self._log.advance(self._cursor, done)
        if is_caught_up and batch.next == position and not self._is_flushing:
            self._log.wait_news(position, 0.2 if self._book.is_holding else 1.0)
        return batch.next

    def _take_in(self, record: Record, now_s: float) -> Iterator[ReadySpan]:
        try:
            for filed in iter_spans(record.payload):
                yield from self._book.add(filed, record.start, now_s)
        except DecodeError:
            self._metrics.add("phoenix_dropped_spans_total", reason="unreadable")

    def _send(self, ready: Sequence[ReadySpan]) -> None:
        by_project: dict[str, list[_ShownSpan]] = {}
        for item in ready:
            shown = (item.filed.scope, present_span(item.filed, item.preview))
            by_project.setdefault(item.project, []).append(shown)
        for project, spans in by_project.items():
            first = 0
            while first < len(spans):
                last, size = first, 0
                while last < len(spans) and last - first < limits.PHOENIX_BATCH_SPANS:
                    size += spans[last][1].ByteSize()
                    if size > limits.PHOENIX_BATCH_BYTES and last > first:
                        break
                    last += 1
                self._post(project, spans[first:last])
                first = last

    def _post(self, project: str, spans: Sequence[_ShownSpan]) -> None:
        """Send spans of one project; if Phoenix rejects them, find the culprits and leave out only those."""
        body = gzip.compress(build_request(project, spans).SerializeToString(), compresslevel=3)
        status = self._post_patiently(body)
        if status == 0:
            self._metrics.add("phoenix_sent_spans_total", len(spans))
        elif len(spans) > 1:
            middle = len(spans) // 2
            self._post(project, spans[:middle])
            self._post(project, spans[middle:])
        else:
            self._metrics.add("phoenix_dropped_spans_total", reason=str(status))
            logger.warning("Phoenix answers %d to span %s; left out", status, spans[0][1].span_id.hex())

    def _post_patiently(self, body: bytes) -> int:
        """Send until it succeeds; 0 when sent, else a status for which a retry is useless."""
        delay_s, delay_max_s = self._backoff_s
        failures = 0
        while True:
            if self._stop.is_set():
                raise _Stopping
            try:
                reply = self._client.request("POST", "/v1/traces", body, _HEADERS)
            except OSError as exc:
                self._note_absence(str(exc))
            else:
                if reply.is_ok:
                    self._note_presence()
                    return 0
                if reply.status in (401, 403):
                    self._wait_for_token(reply.status)
                    continue
                failures += reply.status == 500
                is_passing = reply.status in _AGAIN_STATUSES or 0 < failures < _FAILURES_MAX
                if not is_passing:
                    return reply.status
                self._note_absence(f"status {reply.status}")
            self._metrics.add("phoenix_retries_total")
            self._stop.wait(delay_s * (0.5 + random.random() / 2))  # noqa: S311 jitter, not a secret
            delay_s = min(delay_s * 2, delay_max_s)

    def _wait_for_token(self, status: int) -> None:
        if not self._is_breaker_open:
            logger.warning("Phoenix refuses our token (%d); asking again every %g s", status, self._breaker_s)
        self._is_breaker_open = True
        self._metrics.add("phoenix_retries_total")
        self._stop.wait(self._breaker_s)

    def _note_absence(self, why: str) -> None:
        if not self._is_away:
            logger.warning("Phoenix at %s cannot take spans: %s; they wait in the log", self._client.base, why)
        self._is_away = True

    def _note_presence(self) -> None:
        if self._is_away or self._is_breaker_open:
            logger.info("Phoenix takes spans again")
        self._is_away = self._is_breaker_open = False
