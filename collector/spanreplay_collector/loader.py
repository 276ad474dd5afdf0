"""From the log into the store: at least once, with tokens that make it exactly once."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from spanreplay.errors import StoreError
from spanreplay_collector import limits
from spanreplay_collector.log import Batch, Position, Record, SegmentLog
from spanreplay_collector.log_segment import replace_file
from spanreplay_collector.metrics import Metrics

logger = logging.getLogger(__name__)

CURSOR: Final = "loader"


class SpanStore(Protocol):
    """What the collector needs of a store."""

    def load(self, tenant: str, payloads: Sequence[bytes], token: str) -> int:
        """Store requests and count their spans; the same token a second time stores nothing.

        Raises: StoreError or OSError while the store is away; anything else means that it will not take them.
        """


class _Stopping(Exception):
    """The loader was told to end in the middle of a batch; the next start repeats it."""


class Loader:
    """One thread that follows the log; what the store refuses for good lands in a folder, not in the void."""

    def __init__(
        self,
        log: SegmentLog,
        store: SpanStore,
        metrics: Metrics,
        rejected_dir: Path,
        *,
        linger_s: float = limits.LOAD_LINGER_S,
        backoff_s: tuple[float, float] = limits.LOAD_BACKOFF_S,
    ) -> None:
        self._log = log
        self._store = store
        self._metrics = metrics
        self._rejected_dir = rejected_dir
        self._linger_s = linger_s
        self._backoff_s = backoff_s
        self._cursor = log.cursor(CURSOR)
        self._flush_to = Position(0, 0)
        self._stop = threading.Event()
        self._is_store_down = False
        self._thread = threading.Thread(target=self._run, name="spanreplay-loader", daemon=True)

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    def stop(self, drain_s: float = limits.STOP_DRAIN_S) -> None:
        """Load what there is while the store is up and time is left, then end."""
        if not self._is_store_down:
            self.flush(drain_s)
        self._stop.set()
        self._log.wake_readers()
        self._thread.join()

    def flush(self, timeout_s: float) -> bool:
        """Load everything acknowledged so far without lingering; False if that took too long."""
        target = self._log.end
        self._flush_to = max(self._flush_to, target)
        self._log.wake_readers()
        return self._log.wait_passed(self._cursor, target, timeout_s)

    @property
    def lag_bytes(self) -> int:
        """Acknowledged bytes that the store does not have yet."""
        return self._log.count_bytes(self._log.position_of(self._cursor))

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._load_next()
            except _Stopping:
                return
            except Exception:
                # The log's own disk, for one: nothing is lost, the batch is repeated.
                logger.exception("the loader failed; it tries again")
                self._stop.wait(self._backoff_s[1])

    def _load_next(self) -> None:
        position = self._log.position_of(self._cursor)
        planned = self._cursor.planned
        if planned is None:
            if not self._log.count_bytes(position):
                self._log.wait_news(position, timeout_s=1.0)
                return
            self._linger(position)
            batch = self._log.read(
                position, bytes_max=limits.LOAD_BYTES_MAX, records_max=limits.LOAD_RECORDS_MAX
            )
        else:  # cut short by a crash: the same bounds give the same token
            batch = self._log.read(position, bytes_max=1 << 62, records_max=1 << 62, until=planned)
        if batch.records:
            self._log.plan(self._cursor, batch.next)
            self._load_batch(batch)
        self._log.advance(self._cursor, batch.next)

    def _linger(self, position: Position) -> None:
        """Wait for company: the store takes one large batch better than many small ones."""
        deadline = time.monotonic() + self._linger_s
        while not self._stop.is_set() and self._flush_to <= position:
            left = deadline - time.monotonic()
            if left <= 0 or self._log.count_bytes(position) >= limits.LOAD_BYTES_MAX:
                return
            self._log.wait_change(left)

    def _load_batch(self, batch: Batch) -> None:
        by_tenant: dict[str, list[Record]] = {}
        for record in batch.records:
            by_tenant.setdefault(record.tenant, []).append(record)
        first, last = batch.records[0], batch.records[-1]
        bounds = f"{self._log.identity}:{first.start.segment}:{first.start.offset}-{last.end.offset}"
        for tenant, records in by_tenant.items():
            self._load_records(tenant, records, f"{bounds}:{tenant}")

    def _load_records(self, tenant: str, records: Sequence[Record], token: str) -> None:
        refusal = self._load_patiently(tenant, records, token)
        if refusal is None:
            return
        if len(records) > 1:
            logger.warning(
                "the store refuses a batch (%s); trying its %d records alone", refusal, len(records)
            )
            for place, record in enumerate(records):
                self._load_records(tenant, [record], f"{token}:{place}")
            return
        self._reject(tenant, records[0], refusal)

    def _load_patiently(self, tenant: str, records: Sequence[Record], token: str) -> str | None:
        """Load, however long the store is away. The answer is why the store will not take it, or None."""
        payloads = [record.payload for record in records]
        delay_s, delay_max_s = self._backoff_s
        refusals = 0
        while True:
            try:
                spans = self._store.load(tenant, payloads, token)
            except (StoreError, OSError) as exc:
                self._note_outage(exc)
            except Exception as exc:  # noqa: BLE001 whatever it is, the other records go on
                refusals += 1
                if refusals >= limits.LOAD_POISON_TRIES:
                    return f"{type(exc).__name__}: {exc}"[:300]
            else:
                if self._is_store_down:
                    self._is_store_down = False
                    logger.info("the store is back; %d bytes are waiting", self.lag_bytes)
                self._metrics.add("loaded_spans_total", spans)
                return None
            self._metrics.add("load_retries_total")
            if self._stop.wait(delay_s * (0.5 + random.random() / 2)):  # noqa: S311 jitter, not a secret
                raise _Stopping
            delay_s = min(delay_s * 2, delay_max_s)

    def _note_outage(self, cause: Exception) -> None:
        if not self._is_store_down:
            logger.warning("the store cannot be used: %s; spans are kept in the log meanwhile", cause)
        self._is_store_down = True

    def _reject(self, tenant: str, record: Record, refusal: str) -> None:
        """Keep a record that the store will never take where a person can look at it."""
        self._rejected_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = sum(path.stat().st_size for path in self._rejected_dir.iterdir())
        if kept + len(record.payload) > limits.REJECTED_BYTES_MAX:
            raise StoreError(f"{str(self._rejected_dir)!r} is full", hint="look at what the store refuses")
        path = self._rejected_dir / f"{record.start.segment:016d}-{record.start.offset}.otlp"
        replace_file(path, record.payload)
        self._metrics.add("rejected_records_total")
        logger.error(
            "the store refuses %d bytes of tenant %r for good (%s); kept in %s",
            len(record.payload), tenant, refusal, path,
        )  # fmt: skip
