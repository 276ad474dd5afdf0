"""Load the log into the store: at least once, with deduplication tokens that make it exactly once."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from spanreplay.model.errors import StoreError
from spanreplay.model.private import make_private
from spanreplay_collector import limits
from spanreplay_collector.log.segment import replace_file
from spanreplay_collector.log.segment_log import Batch, Position, Record, SegmentLog
from spanreplay_collector.metrics import Metrics

logger = logging.getLogger(__name__)

CURSOR: Final = "loader"


class SpanStore(Protocol):
    """The interface that the collector needs of a store."""

    @property
    def apart_spans(self) -> int:
        """Number of spans kept apart because they arrived again with different content."""

    def ping(self) -> None:
        """Return if the store answers. Raises: StoreError."""

    def load(self, tenant: str, payloads: Sequence[bytes], token: str) -> int:
        """Store requests and return how many spans they hold; loading again under the same token stores nothing.

        Raises: StoreError or OSError while the store is unavailable; any other exception means that it rejects them.
        """


@dataclass(frozen=True)
class _Failure:
    """Why a load failed: a refusal is caused by the records, any other failure by the store."""

    cause: Exception
    is_refusal: bool


class _Again(Exception):
    """Read the batch again: it may have more records by now, which lets an outage be told from a refusal."""


class _Stopping(Exception):
    """The loader was stopped in the middle of a batch; the next start repeats it."""


class Loader:
    """One thread that follows the log. Records that the store permanently refuses are kept in a folder."""

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
        """Start loading."""
        self._thread.start()

    def stop(self, drain_s: float = limits.STOP_DRAIN_S) -> None:
        """Load the waiting records while the store is up and time is left, then end."""
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
                # For example a failure of the log's own disk: nothing is lost, the batch is repeated.
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
            batch = self._log.read(position, bytes_max=limits.LOAD_BYTES_MAX, records_max=limits.LOAD_RECORDS_MAX)
        else:  # interrupted by a crash: the same bounds give the same token
            batch = self._log.read(position, bytes_max=1 << 62, records_max=1 << 62, until=planned)
        if batch.records:
            self._log.plan(self._cursor, batch)
            try:
                self._load_batch(batch)
            except _Again:
                self._log.unplan(self._cursor)
                return
        self._log.advance(self._cursor, batch.next)

    def _linger(self, position: Position) -> None:
        """Wait for more records: the store handles one large batch better than many small ones."""
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
        """Load, however long the store is unavailable; set aside records it keeps refusing while it takes others."""
        delay_s, delay_max_s = self._backoff_s
        failures = 0
        while failure := self._try_load(tenant, records, token):
            failures += 1
            if failure.is_refusal or failures % limits.LOAD_DOUBT_TRIES == 0:
                if len(records) == 1 and not failure.is_refusal:
                    raise _Again
                if self._load_apart(tenant, records, token):
                    return
            self._pause(delay_s)
            delay_s = min(delay_s * 2, delay_max_s)

    def _try_load(self, tenant: str, records: Sequence[Record], token: str) -> _Failure | None:
        try:
            spans = self._store.load(tenant, [record.payload for record in records], token)
        except (StoreError, OSError) as exc:
            failure = _Failure(exc, is_refusal=False)
        except Exception as exc:  # noqa: BLE001 whatever it is, the other records must still be loaded
            failure = _Failure(exc, is_refusal=True)
        else:
            if self._is_store_down:
                self._is_store_down = False
                logger.info("the store is back; %d bytes are waiting", self.lag_bytes)
            self._metrics.add("loaded_spans_total", spans)
            return None
        self._metrics.add("load_retries_total")
        if not self._is_store_down:
            logger.warning("the store does not load: %s; spans wait in the log", failure.cause)
        self._is_store_down = True
        return failure

    def _load_apart(self, tenant: str, records: Sequence[Record], token: str) -> bool:
        """Load records one by one to find those that make a batch fail; False if the store takes none.

        A record is set aside only if it failed in every round while the store took another one, so that
        an outage is not mistaken for a refusal.
        """
        failed = {place: _Failure(StoreError("not tried"), is_refusal=False) for place in range(len(records))}
        good: int | None = None
        for _ in range(limits.LOAD_POISON_ROUNDS):
            is_taking = good is not None and not self._try_one(tenant, records, token, good)
            for place in list(failed):
                failure = self._try_one(tenant, records, token, place)
                if failure is None:
                    is_taking, good = True, place
                    del failed[place]
                elif failure.is_refusal or is_taking or place < limits.LOAD_POISON_PROBES:
                    failed[place] = failure
                else:
                    return False
            if not failed:
                return True
            if not is_taking and not all(failure.is_refusal for failure in failed.values()):
                return False
            self._pause(self._backoff_s[0])
        for place, failure in failed.items():
            self._reject(tenant, records[place], failure)
        return True

    def _try_one(self, tenant: str, records: Sequence[Record], token: str, place: int) -> _Failure | None:
        return self._try_load(tenant, [records[place]], f"{token}:{place}")

    def _pause(self, delay_s: float) -> None:
        if self._stop.wait(delay_s * (0.5 + random.random() / 2)):  # noqa: S311 jitter, not a secret
            raise _Stopping

    def _reject(self, tenant: str, record: Record, failure: _Failure) -> None:
        """Write a record that the store permanently refuses to a file for inspection."""
        make_private(self._rejected_dir)
        kept = sum(path.stat().st_size for path in self._rejected_dir.iterdir())
        if kept + len(record.payload) > limits.REJECTED_BYTES_MAX:
            raise StoreError(f"{str(self._rejected_dir)!r} is full", hint="look at what the store refuses")
        path = self._rejected_dir / f"{record.start.segment:016d}-{record.start.offset}.otlp"
        replace_file(path, record.payload)
        self._metrics.add("rejected_records_total")
        logger.error(
            "the store refuses %d bytes of tenant %r for good (%s); kept in %s",
            len(record.payload),
            tenant,
            f"{type(failure.cause).__name__}: {failure.cause}"[:300],
            path,
        )
