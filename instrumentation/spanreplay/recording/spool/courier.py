"""Delivers the frames of spool files: batches, acknowledgements, and refused payloads.

Exactly one courier works on a file at a time. A file of this process is claimed in memory; a file
that a dead process left is claimed by taking its writer's flock.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from spanreplay.model.config import SHIP_BATCH_BYTES_MAX
from spanreplay.model.errors import SourceError
from spanreplay.model.private import is_plain_file
from spanreplay.recording.spool.directory import REFUSED, SPOOL_SUFFIX, ack_path
from spanreplay.recording.spool.frames import Frame, scan_file, write_spool_file
from spanreplay.recording.spool.limits import SHIP_REQUEST_TIMEOUT_MS, SHIP_SERVER_ERRORS_MAX
from spanreplay.recording.spool.merge import merge_requests

if TYPE_CHECKING:
    from spanreplay.recording.spool.post import Reply, Sender

__all__ = ["Courier", "Delivery", "ShipReport", "adopt", "is_locked", "read_ack", "write_ack"]

logger = logging.getLogger(__name__)

_BUSY: Final = frozenset({408, 429, 502, 503, 504})
# The request itself is at fault; sending it again cannot help.
_REFUSED: Final = frozenset({400, 413, 422})


class Delivery(Enum):
    """The outcome for one file: all of it delivered, not now, or not this file."""

    DRAINED = "drained"
    BUSY = "busy"
    UNREACHABLE = "unreachable"
    STUCK = "stuck"
    OUT_OF_TIME = "out of time"


@dataclass
class ShipReport:
    """Totals of shipping. `remaining` files still hold unshipped spans; `live` files are being written."""

    payloads: int = 0
    bytes: int = 0
    files: int = 0
    refused: int = 0
    remaining: int = 0
    live: int = 0
    error: str = ""
    url: str = ""
    phoenix_url: str = ""
    """Address of the Phoenix that shows the spans, as stated by the collector."""

    def link(self, span_id: str) -> str:
        """URL of a span's page in Phoenix; empty if the collector named no Phoenix."""
        return f"{self.phoenix_url}/redirects/spans/{span_id}" if self.phoenix_url else ""


def read_ack(path: Path) -> int:
    """The offset up to which a file is delivered; 0 if nothing is, or if its ack file holds no valid offset."""
    try:
        # Follow no link, and read no FIFO, which would never end.
        text = ack_path(path).read_text() if is_plain_file(ack_path(path)) else ""
        size = path.stat().st_size
    except (OSError, ValueError):
        return 0
    offset = int(text) if text.isdecimal() and len(text) < 20 else 0
    # An offset beyond the end is not ours: better to deliver twice than to delete undelivered spans.
    return offset if offset <= size else 0


def write_ack(path: Path, offset: int) -> None:
    """Store how far a file is delivered, atomically. Raises: OSError."""
    target = ack_path(path)
    hidden = target.with_name(f".{target.name}.{os.getpid()}")
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, str(offset).encode())
    finally:
        os.close(descriptor)
    hidden.replace(target)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file: its writer, or briefly a process that ships its rest."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(descriptor)
    return False


@contextmanager
def adopt(path: Path) -> Iterator[bool]:
    """Hold the lock of a file whose writer is gone; yields False if the file has an owner or is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    with _adopted_lock:
        _adopted.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have shipped and deleted it between open and lock.
            is_ours = os.fstat(descriptor).st_nlink > 0
        except OSError:
            is_ours = False
        yield is_ours
    finally:
        with _adopted_lock:
            _adopted.discard(descriptor)
        os.close(descriptor)


_adopted: set[int] = set()
_adopted_lock = threading.RLock()


def _reset_after_fork() -> None:
    """Close a child's copies of adopted files: they would keep the locks after the parent released them."""
    global _adopted_lock
    _adopted_lock = threading.RLock()
    while _adopted:
        with suppress(OSError):
            os.close(_adopted.pop())


os.register_at_fork(after_in_child=_reset_after_fork)


def _iter_batches(path: Path, offset: int, bytes_max: int) -> Iterator[list[Frame]]:
    """Frames in groups of at most `bytes_max`; a larger frame goes alone."""
    batch: list[Frame] = []
    size = 0
    for frame in scan_file(path, offset):
        if batch and size + len(frame.payload) > bytes_max:
            yield batch
            batch, size = [], 0
        batch.append(frame)
        size += len(frame.payload)
    if batch:
        yield batch


def _rejected_spans(body: bytes) -> int:
    """Number of spans that a successful reply reports as rejected."""
    if not body:
        return 0
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    try:
        return int(ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans)
    except DecodeError:
        return 0


def _server_of(url: str) -> str:
    """Scheme, host and port only: a path or query may hold a secret key."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


class Courier:
    """Ships one file after another to one target and keeps the counts; used by one thread at a time."""

    def __init__(self, sender: Sender, url: str) -> None:
        self.report = ShipReport(url=_server_of(url))
        self.told: Callable[[int], None] | None = None
        """Called with the number of files delivered so far."""
        self.retry_after_ms = 0
        self.sender = sender
        self._url = url
        self._offsets: dict[Path, int] = {}
        self._server_errors: dict[Path, int] = {}
        self._deadline = float("inf")
        self._said: set[str] = set()

    def ship_own(self, path: Path, deadline: float) -> Delivery:
        """Deliver what this process has appended to a file so far."""
        if path not in self._offsets and not ack_path(path).exists():
            self._acknowledge(path, 0)
        return self._ship(path, deadline)

    def ship_left(self, path: Path, deadline: float) -> Delivery:
        """Deliver the rest of an adopted file and delete it."""
        try:
            delivery = self._ship(path, deadline)
        except SourceError as exc:
            self.say(f"damaged:{path}", "%s; it is kept in %s", exc, REFUSED)
            self._move_to_refused(path)
            return Delivery.DRAINED
        if delivery is Delivery.DRAINED:
            path.unlink(missing_ok=True)
            ack_path(path).unlink(missing_ok=True)
            self._offsets.pop(path, None)
            self.report.files += 1
            if self.told is not None:
                self.told(self.report.files)
        return delivery

    def say(self, cause: str, message: str, *values: object) -> None:
        """Log a warning, once for each cause."""
        if cause not in self._said:
            self._said.add(cause)
            logger.warning(message, *values)

    def _ship(self, path: Path, deadline: float) -> Delivery:
        self._deadline = deadline
        offset = self._offsets.get(path)
        if offset is None:
            offset = self._offsets[path] = read_ack(path)
        for batch in _iter_batches(path, offset, SHIP_BATCH_BYTES_MAX):
            delivery = self._send(path, batch)
            if delivery is not Delivery.DRAINED:
                return delivery
        return Delivery.DRAINED

    def _send(self, path: Path, frames: list[Frame]) -> Delivery:
        """Deliver a batch; a refused one is halved until the payload at fault is alone."""
        remaining_s = self._deadline - monotonic()
        if remaining_s <= 0:
            return Delivery.OUT_OF_TIME
        timeout_s = min(remaining_s, SHIP_REQUEST_TIMEOUT_MS / 1000)
        size = sum(len(f.payload) for f in frames)
        reply = self.sender.post(merge_requests([f.payload for f in frames]), timeout_s)
        if 200 <= reply.status < 300:
            self._accept(path, frames, size, reply)
            return Delivery.DRAINED
        if not self._is_refused(path, reply):
            return self._not_now(path, reply)
        if len(frames) > 1:
            middle = len(frames) // 2
            first = self._send(path, frames[:middle])
            return first if first is not Delivery.DRAINED else self._send(path, frames[middle:])
        return self._refuse(path, frames[0], reply)

    def _accept(self, path: Path, frames: list[Frame], size: int, reply: Reply) -> None:
        self.report.payloads += len(frames)
        self.report.bytes += size
        self.report.phoenix_url = reply.phoenix_url or self.report.phoenix_url
        self._server_errors.pop(path, None)
        rejected = _rejected_spans(reply.body)
        if rejected:
            self.report.refused += rejected
            self.say("partial", "%s rejected %d spans of an accepted batch", self._url, rejected)
        self._acknowledge(path, frames[-1].end)

    def _is_refused(self, path: Path, reply: Reply) -> bool:
        """Whether sending this batch again cannot help."""
        if reply.status in _REFUSED:
            return True
        if reply.status == 500:
            tries = self._server_errors[path] = self._server_errors.get(path, 0) + 1
            return tries > SHIP_SERVER_ERRORS_MAX
        return False

    def _not_now(self, path: Path, reply: Reply) -> Delivery:
        self.retry_after_ms = reply.retry_after_ms
        answer = f"HTTP {reply.status}" if reply.status else reply.error
        self.report.error = f"{self._url}: {answer}"
        self.say(answer, "spans wait in the spool, %s answers %s", self._url, answer)
        if reply.status == 500:
            return Delivery.STUCK
        return Delivery.BUSY if reply.status in _BUSY else Delivery.UNREACHABLE

    def _refuse(self, path: Path, frame: Frame, reply: Reply) -> Delivery:
        """Set one payload aside, so that it never blocks the others."""
        self.report.refused += 1
        size = len(frame.payload)
        self.say(
            f"refused:{reply.status}",
            "%s refuses a payload of %d bytes with HTTP %d; it is kept in %s",
            self._url,
            size,
            reply.status,
            REFUSED,
        )
        if path.parent.name == REFUSED:
            return Delivery.STUCK
        aside = path.parent / REFUSED / f"{path.name.removesuffix(SPOOL_SUFFIX)}-{frame.start}{SPOOL_SUFFIX}"
        aside.parent.mkdir(mode=0o700, exist_ok=True)
        write_spool_file(aside, [frame.payload])
        self._acknowledge(path, frame.end)
        return Delivery.DRAINED

    def _acknowledge(self, path: Path, offset: int) -> None:
        self._offsets[path] = offset
        try:
            write_ack(path, offset)
        except OSError as exc:
            # At worst delivered twice after a restart: the collector identifies spans by their ids.
            self.say("ack", "cannot save the delivery state of %s: %s", path.name, exc.strerror)

    def _move_to_refused(self, path: Path) -> None:
        self.report.refused += 1
        if path.parent.name == REFUSED:
            return
        aside = path.parent / REFUSED / path.name
        aside.parent.mkdir(mode=0o700, exist_ok=True)
        path.rename(aside)
        ack_path(path).unlink(missing_ok=True)

    def forget(self, paths: set[Path]) -> None:
        """Drop the state of all files except these."""
        for known in (self._offsets, self._server_errors):
            for path in set(known) - paths:
                del known[path]
