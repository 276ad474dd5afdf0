"""The one thread that writes the log: it writes all waiting requests, syncs once, then answers them all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spanreplay.model.errors import SpanreplayError
from spanreplay_collector import limits
from spanreplay_collector.log.segment import (
    MAGIC,
    encode_frame,
    segment_path,
    sync_directory,
    sync_file,
    write_all,
)
from spanreplay_collector.log.shelf import Shelf
from spanreplay_collector.metrics import Metrics

logger = logging.getLogger(__name__)


class LogUnavailable(SpanreplayError):
    """The log could not make a record durable; the sender must retry."""


@dataclass(frozen=True)
class _Waiting:
    tenant: str
    payload: bytes
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


class GroupWriter:
    """Appends records to the active segment of a shelf. `on_write` runs on the writer thread after each group."""

    def __init__(
        self,
        directory: Path,
        shelf: Shelf,
        metrics: Metrics,
        on_write: Callable[[], None],
        *,
        segment_bytes: int,
        segment_age_s: float,
    ) -> None:
        self._directory = directory
        self._shelf = shelf
        self._metrics = metrics
        self._on_write = on_write
        self._segment_bytes = segment_bytes
        self._segment_age_s = segment_age_s
        self._work = threading.Condition()
        self._pending: deque[_Waiting] = deque()
        self._is_closing = False
        self._fd = -1
        self._opened_at = 0.0
        self.pending_bytes = 0
        self._thread = threading.Thread(target=self._run, name="spanreplay-log", daemon=True)
        self._thread.start()

    async def append(self, tenant: str, payload: bytes) -> None:
        """Return once the record is on the disk. Raises: LogUnavailable."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._work:
            if self._is_closing:
                raise LogUnavailable("the collector is stopping", hint="send again, it will be back")
            self._pending.append(_Waiting(tenant, payload, loop, future))
            self.pending_bytes += len(payload)
            self._work.notify()
        await future

    def close(self) -> None:
        """Write the waiting records, then stop the thread."""
        with self._work:
            self._is_closing = True
            self._work.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._work:
                if not self._pending and not self._is_closing:
                    self._work.wait(self._time_to_seal())
                group = self._take_group()
                is_done = self._is_closing and not group
            if group:
                self._commit(group)
            if is_done or self._time_to_seal() == 0:
                self._seal()
            if group or self._fd < 0:
                self._clean_up()
            if is_done:
                return

    def _take_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._pending and len(group) < limits.GROUP_RECORDS_MAX and size < limits.GROUP_BYTES_MAX:
            waiting = self._pending.popleft()
            size += len(waiting.payload)
            group.append(waiting)
        self.pending_bytes -= size
        return group

    def _time_to_seal(self) -> float | None:
        if self._fd < 0:
            return None
        return max(0.0, self._opened_at + self._segment_age_s - time.monotonic())

    def _commit(self, group: Sequence[_Waiting]) -> None:
        failure: LogUnavailable | None = None
        try:
            self._write_durably(group)
        except Exception as exc:  # noqa: BLE001 the writer must outlive anything, or every client would hang
            self._metrics.add("log_write_errors_total")
            logger.error("cannot write the log in %s: %s; clients are told to retry", self._directory, exc)
            self._abandon_tail()
            failure = LogUnavailable(f"cannot write the log: {exc}", hint="free disk space")
        _answer(group, failure)
        if self._fd >= 0 and self._shelf.sizes[self._shelf.active] >= self._segment_bytes:
            self._seal()

    def _write_durably(self, group: Sequence[_Waiting]) -> None:
        if self._fd < 0:
            self._open_segment()
        now_ns = time.time_ns()
        buffers: list[bytes] = []
        for waiting in group:
            buffers += encode_frame(waiting.tenant, now_ns, waiting.payload)
        write_all(self._fd, buffers)
        sync_file(self._fd)
        self._shelf.grow(sum(map(len, buffers)))
        self._metrics.add("log_groups_total")

    def _open_segment(self) -> None:
        segment = self._shelf.take_number()
        path = segment_path(self._directory, segment)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            write_all(fd, [MAGIC])
            sync_directory(self._directory)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        self._fd = fd
        self._opened_at = time.monotonic()
        self._shelf.open_segment(segment)

    def _abandon_tail(self) -> None:
        """Cut the tail and start a new segment: after a failed write or sync its content is unknown."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._shelf.sizes[self._shelf.active])
        self._seal()

    def _seal(self) -> None:
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._fd = -1
        self._shelf.close_segment()

    def _clean_up(self) -> None:
        try:
            self._on_write()
        except OSError as exc:
            logger.warning("cannot delete a segment of the log in %s: %s", self._directory, exc)


def _answer(group: Sequence[_Waiting], failure: LogUnavailable | None) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for waiting in group:
        by_loop.setdefault(waiting.loop, []).append(waiting.future)
    for loop, futures in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is waiting any more
            loop.call_soon_threadsafe(_settle, futures, failure)


def _settle(futures: Sequence[asyncio.Future[None]], failure: LogUnavailable | None) -> None:
    for future in futures:
        if future.done():
            continue
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)
