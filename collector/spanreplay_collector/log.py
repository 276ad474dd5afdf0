"""The append-only log between the ACK and everything behind it.

One writer thread takes all waiting requests, writes them, syncs once and then answers all of them. Readers
follow with named cursors; a segment is deleted when every cursor has passed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spanreplay.errors import ConfigError, SpanreplayError
from spanreplay_collector import limits
from spanreplay_collector.log_cursor import Cursor
from spanreplay_collector.log_segment import (
    MAGIC,
    Position,
    Record,
    decode_body,
    encode_frame,
    find_end,
    list_segments,
    read_frame,
    replace_file,
    segment_path,
    sync_directory,
    sync_file,
    write_all,
)
from spanreplay_collector.metrics import Metrics

__all__ = ["Batch", "Cursor", "LogUnavailable", "Position", "Record", "SegmentLog"]

logger = logging.getLogger(__name__)


class LogUnavailable(SpanreplayError):
    """The log could not make a record durable; the sender has to try again."""


@dataclass(frozen=True)
class Batch:
    """Records of one segment in order, and where the next batch starts."""

    records: tuple[Record, ...]
    next: Position


@dataclass(frozen=True)
class _Waiting:
    tenant: str
    payload: bytes
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


class SegmentLog:
    """An append log in a directory of its own; one process at a time.

    `cursors` names every reader; a number is how many bytes it may stay behind before it is moved on,
    None means that nothing is deleted before it was read. Append from asyncio, read from threads.
    Raises: ConfigError if another process has the directory open.
    """

    def __init__(
        self,
        directory: Path,
        *,
        cursors: Mapping[str, int | None],
        metrics: Metrics | None = None,
        bytes_max: int = limits.LOG_BYTES_MAX,
        segment_bytes: int = limits.SEGMENT_BYTES,
        segment_age_s: float = limits.SEGMENT_AGE_S,
    ) -> None:
        self._directory = directory
        self._metrics = metrics or Metrics()
        self._bytes_max = bytes_max
        self._segment_bytes = segment_bytes
        self._segment_age_s = segment_age_s
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._grown = threading.Condition(self._lock)
        self._pending: deque[_Waiting] = deque()
        self._pending_bytes = 0
        self._closing = False
        self._fd = -1
        self._active = -1
        self._opened_at = 0.0
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._owner_fd = _take_ownership(directory)
        self._sizes = self._recover()
        self._cursors = self._open_cursors(cursors)
        places = [*self._sizes, *(c.position.segment for c in self._cursors.values())]
        self._next_segment = max(places, default=0) + 1
        self.identity = self._read_identity()
        self._delete_passed()
        self._writer = threading.Thread(target=self._write_groups, name="spanreplay-log", daemon=True)
        self._writer.start()

    # ── Opening and closing ─────────────────────────────────────────────────────────────────────────

    def _recover(self) -> dict[int, int]:
        """Sizes of the segments found; a torn tail is cut off, an empty segment is deleted."""
        sizes: dict[int, int] = {}
        segments = list_segments(self._directory)
        for segment in segments:
            path = segment_path(self._directory, segment)
            size = path.stat().st_size
            if segment == segments[-1]:
                end = find_end(path)
                if end < size:
                    logger.info("cutting %d bytes of an unfinished write from %s", size - end, path.name)
                    os.truncate(path, end)
                size = end
            if size > len(MAGIC):
                sizes[segment] = size
            else:
                path.unlink()
        return sizes

    def _open_cursors(self, wanted: Mapping[str, int | None]) -> dict[str, Cursor]:
        folder = self._directory / "cursors"
        folder.mkdir(exist_ok=True, mode=0o700)
        for stale in folder.iterdir():  # a reader that is gone must not keep segments for ever
            if stale.stem not in wanted or stale.suffix:
                stale.unlink()
        cursors = {name: Cursor(folder / name, lag_bytes_max=lag) for name, lag in wanted.items()}
        oldest = min(self._sizes, default=0)
        for cursor in cursors.values():
            if cursor.position.segment not in self._sizes:
                cursor.planned = None
            if cursor.position.segment < oldest:
                cursor.position = Position(oldest, 0)
            cursor.position = self._normalize(cursor.position)
        return cursors

    def _read_identity(self) -> str:
        """A name for this log in deduplication tokens; new whenever no record is left from before.

        Segment numbers alone could come twice, and the store would take new records for known ones.
        """
        path = self._directory / "identity"
        if self._sizes and path.exists():
            return path.read_text(encoding="ascii").strip()
        identity = uuid.uuid4().hex[:16]
        replace_file(path, identity.encode() + b"\n")
        return identity

    def close(self) -> None:
        """Commit what waits, stop the writer and release the directory."""
        with self._lock:
            self._closing = True
            self._work.notify_all()
            self._grown.notify_all()
        self._writer.join()
        if self._owner_fd >= 0:
            os.close(self._owner_fd)
            self._owner_fd = -1

    # ── Appending ───────────────────────────────────────────────────────────────────────────────────

    async def append(self, tenant: str, payload: bytes) -> None:
        """Return when the record is on the disk. Raises: LogUnavailable."""
        if len(tenant.encode()) > limits.TENANT_BYTES_MAX or len(payload) > limits.RECORD_BYTES_MAX - 256:
            raise LogUnavailable("the request is larger than a record of the log may be")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._closing:
                raise LogUnavailable("the collector is stopping", hint="send again, it will be back")
            self._pending.append(_Waiting(tenant, payload, loop, future))
            self._pending_bytes += len(payload)
            self._work.notify()
        await future

    def has_room(self, size: int) -> bool:
        """Whether the disk takes that many bytes more."""
        if self.bytes_on_disk + self._pending_bytes + size > self._bytes_max:
            return False
        try:
            free = shutil.disk_usage(self._directory).free
        except OSError:
            return False
        return free - size >= limits.DISK_FREE_BYTES_MIN

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of all segments."""
        with self._lock:
            return sum(self._sizes.values())

    def _write_groups(self) -> None:
        while True:
            with self._lock:
                if not self._pending and not self._closing:
                    self._work.wait(self._time_to_seal())
                group = self._take_group()
                is_done = self._closing and not group
            if group:
                self._commit(group)
            if is_done or self._time_to_seal() == 0:
                self._seal()
            if is_done:
                return

    def _take_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._pending and len(group) < limits.GROUP_RECORDS_MAX and size < limits.GROUP_BYTES_MAX:
            waiting = self._pending.popleft()
            size += len(waiting.payload)
            group.append(waiting)
        self._pending_bytes -= size
        return group

    def _time_to_seal(self) -> float | None:
        if self._active < 0:
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
        if self._active >= 0 and self._sizes[self._active] >= self._segment_bytes:
            self._seal()
        self._delete_passed()

    def _write_durably(self, group: Sequence[_Waiting]) -> None:
        if self._active < 0:
            self._open_segment()
        now_ns = time.time_ns()
        buffers: list[bytes] = []
        for waiting in group:
            buffers += encode_frame(waiting.tenant, now_ns, waiting.payload)
        write_all(self._fd, buffers)
        sync_file(self._fd)
        with self._lock:
            self._sizes[self._active] += sum(map(len, buffers))
            self._grown.notify_all()
        self._metrics.add("log_groups_total")

    def _open_segment(self) -> None:
        segment = self._next_segment
        self._next_segment += 1  # also after a failure: a half-made file is never used again
        path = segment_path(self._directory, segment)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            write_all(fd, [MAGIC])
            sync_directory(self._directory)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        with self._lock:
            self._fd, self._active = fd, segment
            self._sizes[segment] = len(MAGIC)
            self._opened_at = time.monotonic()

    def _abandon_tail(self) -> None:
        """After a failed write or sync nobody knows what the tail holds: cut it and start a new segment."""
        if self._active < 0:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._sizes[self._active])
        self._seal()

    def _seal(self) -> None:
        with self._lock:
            if self._active < 0:
                return
            os.close(self._fd)
            self._fd = self._active = -1
            for cursor in self._cursors.values():
                cursor.position = self._normalize(cursor.position)
            self._grown.notify_all()
        self._delete_passed()

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────────

    def cursor(self, name: str) -> Cursor:
        """One of the cursors named at the start."""
        return self._cursors[name]

    @property
    def end(self) -> Position:
        """Just behind the last durable record."""
        with self._lock:
            if not self._sizes:
                return Position(self._next_segment, 0)
            newest = max(self._sizes)
            return self._normalize(Position(newest, self._sizes[newest]))

    def position_of(self, cursor: Cursor) -> Position:
        """Where a cursor stands; a cursor with a lag limit may have been moved on."""
        with self._lock:
            return cursor.position

    def count_bytes(self, start: Position, end: Position | None = None) -> int:
        """Durable bytes from a position up to another, or to the end."""
        with self._lock:
            return sum(
                max(
                    0,
                    (end.offset if end and end.segment == segment else size)
                    - (start.offset if start.segment == segment else 0),
                )
                for segment, size in self._sizes.items()
                if start.segment <= segment and (end is None or segment <= end.segment)
            )

    def wait_passed(self, cursor: Cursor, position: Position, timeout_s: float) -> bool:
        """Wait until no record is left before a position; False after the timeout or when the log closes."""

        def has_passed() -> bool:
            return cursor.position >= position or not self.count_bytes(cursor.position, position)

        with self._lock:
            self._grown.wait_for(lambda: self._closing or has_passed(), timeout_s)
            return has_passed()

    def wake_readers(self) -> None:
        """Make every `wait_change` return."""
        with self._lock:
            self._grown.notify_all()

    def wait_change(self, timeout_s: float) -> None:
        """Wait until the log grew, a cursor moved or somebody called `wake_readers`."""
        with self._lock:
            if not self._closing:
                self._grown.wait(timeout_s)

    def wait_news(self, position: Position, timeout_s: float) -> None:
        """Like `wait_change`, but returns at once if there is a record behind a position."""
        with self._lock:
            if not self._closing and not self._is_before_end(position):
                self._grown.wait(timeout_s)

    def _is_before_end(self, position: Position) -> bool:
        return any(Position(segment, size) > position for segment, size in self._sizes.items())

    def read(self, position: Position, *, bytes_max: int, records_max: int, until: Position | None = None) -> Batch:
        """The next records of one segment, at least one if there is any; empty at the end of the log."""
        with self._lock:
            later = [segment for segment in sorted(self._sizes) if segment >= position.segment]
            if later and later[0] > position.segment:  # that segment is gone
                position = Position(later[0], 0)
            size = self._sizes.get(position.segment, 0)
        limit = min(size, until.offset) if until and until.segment == position.segment else size
        offset = max(position.offset, len(MAGIC))
        if offset >= limit:
            with self._lock:
                return Batch((), self._normalize(position))
        place = Position(position.segment, offset)
        try:
            records, end = self._read_segment(place, limit, bytes_max, records_max)
        except FileNotFoundError:  # a reader with a lag limit was overtaken
            return Batch((), Position(position.segment + 1, 0))
        with self._lock:
            return Batch(tuple(records), self._normalize(Position(position.segment, end)))

    def _read_segment(self, start: Position, limit: int, bytes_max: int, records_max: int) -> tuple[list[Record], int]:
        records: list[Record] = []
        segment, offset = start
        stop = offset + bytes_max
        with segment_path(self._directory, segment).open("rb", buffering=1 << 18) as file:
            while offset < limit and len(records) < records_max and (not records or offset < stop):
                frame = read_frame(file, offset, limit)
                if frame is None:
                    self._report_damage(segment, offset)
                    return records, limit
                body = frame.body
                record = None if body is None else decode_body(body, Position(segment, offset), frame.end)
                if record is None:
                    self._report_damage(segment, offset)
                else:
                    records.append(record)
                offset = frame.end
        return records, offset

    def _report_damage(self, segment: int, offset: int) -> None:
        self._metrics.add("log_damaged_records_total")
        logger.error("record at %d of %s is damaged and lost", offset, segment_path(self._directory, segment))

    def plan(self, cursor: Cursor, batch: Batch) -> None:
        """Write down the bounds of a batch that is about to be handed on. Raises: OSError."""
        with self._lock:
            cursor.position = max(cursor.position, batch.records[0].start)
            cursor.planned = batch.next
        cursor.persist()

    def unplan(self, cursor: Cursor) -> None:
        """Forget a planned batch, of which nothing was handed on. Raises: OSError."""
        with self._lock:
            cursor.planned = None
        cursor.persist()

    def advance(self, cursor: Cursor, position: Position) -> None:
        """Say that everything before a position is done with. Raises: OSError."""
        with self._lock:
            cursor.position = self._normalize(max(position, cursor.position))
            cursor.planned = None
            self._grown.notify_all()
        cursor.persist()
        self._delete_passed()

    def _normalize(self, position: Position) -> Position:
        """The end of a closed segment is the start of the next one."""
        if position.segment == self._active or position.offset < self._sizes.get(position.segment, 0):
            return position
        if position.offset == 0 and position.segment not in self._sizes:
            return position
        return Position(position.segment + 1, 0)

    def _delete_passed(self) -> None:
        with self._lock:
            for cursor in self._cursors.values():
                self._limit_lag(cursor)
            oldest_needed = min((c.position.segment for c in self._cursors.values()), default=self._next_segment)
            passed = [s for s in self._sizes if s < oldest_needed and s != self._active]
            for segment in passed:
                del self._sizes[segment]
        for segment in passed:
            segment_path(self._directory, segment).unlink(missing_ok=True)

    def _limit_lag(self, cursor: Cursor) -> None:
        if cursor.lag_bytes_max is None:
            return
        while self.count_bytes(cursor.position) > cursor.lag_bytes_max:
            closed = [s for s in self._sizes if s >= cursor.position.segment and s != self._active]
            if not closed:
                return
            target = Position(min(closed) + 1, 0)
            skipped = self.count_bytes(cursor.position, target)
            self._metrics.add(f"{cursor.name}_dropped_bytes_total", skipped)
            cursor.position = target


def _take_ownership(directory: Path) -> int:
    fd = os.open(directory / "owner.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(fd)
        raise ConfigError(
            f"another collector is using {str(directory)!r}",
            hint="stop it, or give this one another data directory",
        ) from exc
    return fd


def _answer(group: Sequence[_Waiting], failure: LogUnavailable | None) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for waiting in group:
        by_loop.setdefault(waiting.loop, []).append(waiting.future)
    for loop, futures in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, futures, failure)


def _settle(futures: Sequence[asyncio.Future[None]], failure: LogUnavailable | None) -> None:
    for future in futures:
        if future.done():
            continue
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)
