"""The append-only log between the ACK and the later stages, store and Phoenix.

Readers follow with named cursors; a segment is deleted when every cursor has passed it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spanreplay.model.errors import ConfigError
from spanreplay.model.private import make_private
from spanreplay_collector import limits
from spanreplay_collector.log.cursor import Cursor
from spanreplay_collector.log.segment import (
    MAGIC,
    Position,
    Record,
    decode_body,
    find_end,
    list_segments,
    read_frame,
    replace_file,
    segment_path,
    sync_file,
)
from spanreplay_collector.log.shelf import Shelf
from spanreplay_collector.log.writer import GroupWriter, LogUnavailable
from spanreplay_collector.metrics import Metrics

__all__ = ["Batch", "Cursor", "LogUnavailable", "Position", "Record", "SegmentLog"]

logger = logging.getLogger(__name__)

READY_FILE = ".ready"


@dataclass(frozen=True)
class Batch:
    """Records of one segment in order, and the start of the next batch."""

    records: tuple[Record, ...]
    next: Position


class SegmentLog:
    """An append-only log in its own directory; one process at a time.

    `cursors` names every reader. A number is how many bytes the reader may lag before its cursor is moved
    forward; None means that nothing is deleted before it was read. Append from asyncio, read from threads.
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
        self._shelf = Shelf()
        self._is_closing = False
        make_private(directory)
        self._owner_fd = _take_ownership(directory)
        self._shelf.sizes.update(_recover(directory))
        self._cursors = self._open_cursors(cursors)
        places = [*self._shelf.sizes, *(c.position.segment for c in self._cursors.values())]
        self._shelf.next_segment = max(places, default=0) + 1
        self.identity = self._read_identity()
        self._delete_passed()
        self._writer = GroupWriter(
            directory,
            self._shelf,
            self._metrics,
            self._delete_passed,
            segment_bytes=segment_bytes,
            segment_age_s=segment_age_s,
        )

    def _open_cursors(self, wanted: Mapping[str, int | None]) -> dict[str, Cursor]:
        folder = self._directory / "cursors"
        folder.mkdir(exist_ok=True, mode=0o700)
        for stale in folder.iterdir():  # a removed reader must not keep segments forever
            if stale.stem not in wanted or stale.suffix:
                stale.unlink()
        cursors = {name: Cursor(folder / name, lag_bytes_max=lag) for name, lag in wanted.items()}
        for cursor in cursors.values():
            if cursor.position.segment not in self._shelf.sizes:
                cursor.planned = None
            cursor.position = self._shelf.normalize(self._shelf.locate(cursor.position)[0])
        return cursors

    def _read_identity(self) -> str:
        """A name for this log in deduplication tokens; new whenever no earlier record is left.

        Segment numbers alone could repeat, and the store would mistake new records for known ones.
        """
        path = self._directory / "identity"
        if self._shelf.sizes and path.exists():
            return path.read_text(encoding="ascii").strip()
        identity = uuid.uuid4().hex[:16]
        replace_file(path, identity.encode() + b"\n")
        return identity

    def close(self) -> None:
        """Commit the waiting records, stop the writer and release the directory."""
        self._writer.close()
        with self._shelf.lock:
            self._is_closing = True
            self._shelf.grown.notify_all()
        if self._owner_fd >= 0:
            os.close(self._owner_fd)
            self._owner_fd = -1

    # ── Appending ───────────────────────────────────────────────────────────────────────────────────

    async def append(self, tenant: str, payload: bytes) -> None:
        """Return once the record is on the disk. Raises: LogUnavailable."""
        if len(tenant.encode()) > limits.TENANT_BYTES_MAX or len(payload) > limits.RECORD_BYTES_MAX - 256:
            raise LogUnavailable("the request is larger than a record of the log may be")
        await self._writer.append(tenant, payload)

    def has_room(self, size: int) -> bool:
        """Whether the log and the disk have room for `size` more bytes."""
        if self._shelf.bytes_on_disk + self._writer.pending_bytes + size > self._bytes_max:
            return False
        try:
            free = shutil.disk_usage(self._directory).free
        except OSError:
            return False
        return free - size >= limits.DISK_FREE_BYTES_MIN

    def find_trouble(self) -> str:
        """One line on why a record can't be written now; "" if it can. Writes one byte to find out."""
        if not self.has_room(limits.READY_ROOM_BYTES):
            return "the log is full: the store is slow or unavailable, or the disk is full"
        path = self._directory / READY_FILE
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.write(fd, b"1")
                sync_file(fd)
            finally:
                os.close(fd)
                path.unlink(missing_ok=True)
        except OSError as exc:
            return f"the log cannot be written: {exc.strerror}"
        return ""

    @property
    def bytes_on_disk(self) -> int:
        """Total size of all segments in bytes."""
        return self._shelf.bytes_on_disk

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────────

    def cursor(self, name: str) -> Cursor:
        """Return one of the cursors named in the constructor."""
        return self._cursors[name]

    @property
    def end(self) -> Position:
        """The position just after the last durable record."""
        return self._shelf.end

    def position_of(self, cursor: Cursor) -> Position:
        """The position of a cursor; a cursor with a lag limit may have been moved forward."""
        with self._shelf.lock:
            return cursor.position

    def count_bytes(self, start: Position) -> int:
        """Number of durable bytes after a position."""
        return self._shelf.count_bytes(start)

    def wait_passed(self, cursor: Cursor, position: Position, timeout_s: float) -> bool:
        """Wait until a cursor has no record left before a position.

        False if there still is one after the timeout or when the log closes.
        """

        def has_passed() -> bool:
            return cursor.position >= position or not self._shelf.count_bytes(cursor.position, position)

        with self._shelf.lock:
            self._shelf.grown.wait_for(lambda: self._is_closing or has_passed(), timeout_s)
            return has_passed()

    def wake_readers(self) -> None:
        """Make every `wait_change` and `wait_news` return."""
        with self._shelf.lock:
            self._shelf.grown.notify_all()

    def wait_change(self, timeout_s: float) -> None:
        """Wait until the log has grown, a cursor has moved or `wake_readers` was called."""
        with self._shelf.lock:
            if not self._is_closing:
                self._shelf.grown.wait(timeout_s)

    def wait_news(self, position: Position, timeout_s: float) -> None:
        """Like `wait_change`, but return at once if there is a record after a position."""
        with self._shelf.lock:
            if not self._is_closing and not self._shelf.has_more(position):
                self._shelf.grown.wait(timeout_s)

    def read(self, position: Position, *, bytes_max: int, records_max: int, until: Position | None = None) -> Batch:
        """Read the next records of one segment, at least one if there is any; empty at the end of the log."""
        position, size = self._shelf.locate(position)
        limit = min(size, until.offset) if until and until.segment == position.segment else size
        start = Position(position.segment, max(position.offset, len(MAGIC)))
        if start.offset >= limit:
            return Batch((), self._shelf.normalize(position))
        try:
            records, end = self._read_segment(start, limit, bytes_max, records_max)
        except FileNotFoundError:  # a reader with a lag limit was overtaken
            return Batch((), Position(position.segment + 1, 0))
        return Batch(tuple(records), self._shelf.normalize(Position(position.segment, end)))

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

    # ── Moving on ───────────────────────────────────────────────────────────────────────────────────

    def plan(self, cursor: Cursor, batch: Batch) -> None:
        """Persist the bounds of a batch that is about to be passed on. Raises: OSError."""
        with self._shelf.lock:
            cursor.position = max(cursor.position, batch.records[0].start)
            cursor.planned = batch.next
        cursor.persist()

    def unplan(self, cursor: Cursor) -> None:
        """Drop the plan of a batch of which nothing was passed on. Raises: OSError."""
        with self._shelf.lock:
            cursor.planned = None
        cursor.persist()

    def advance(self, cursor: Cursor, position: Position) -> None:
        """Mark everything before a position as processed. Raises: OSError."""
        with self._shelf.lock:
            cursor.position = self._shelf.normalize(max(position, cursor.position))
            cursor.planned = None
            self._shelf.grown.notify_all()
        cursor.persist()
        self._delete_passed()

    def _delete_passed(self) -> None:
        shelf = self._shelf
        with shelf.lock:
            for cursor in self._cursors.values():
                cursor.position = shelf.normalize(cursor.position)
                self._limit_lag(cursor)
            needed = min((c.position.segment for c in self._cursors.values()), default=shelf.next_segment)
            passed = [segment for segment in shelf.sizes if segment < needed and segment != shelf.active]
            for segment in passed:
                del shelf.sizes[segment]
        for segment in passed:
            segment_path(self._directory, segment).unlink(missing_ok=True)

    def _limit_lag(self, cursor: Cursor) -> None:
        shelf = self._shelf
        while cursor.lag_bytes_max is not None and shelf.count_bytes(cursor.position) > cursor.lag_bytes_max:
            closed = [s for s in shelf.sizes if s >= cursor.position.segment and s != shelf.active]
            if not closed:
                return
            target = Position(min(closed) + 1, 0)
            self._metrics.add(f"{cursor.name}_dropped_bytes_total", shelf.count_bytes(cursor.position, target))
            cursor.position = target


def _recover(directory: Path) -> dict[int, int]:
    """Return the sizes of the segments found; cut off a torn tail and delete empty segments."""
    sizes: dict[int, int] = {}
    segments = list_segments(directory)
    for segment in segments:
        path = segment_path(directory, segment)
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
