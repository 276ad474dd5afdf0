"""Admission control: limits the bytes in flight and checks that the log has room."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from spanreplay.model.errors import SpanreplayError
from spanreplay_collector import limits


class Busy(SpanreplayError):
    """The collector is overloaded: the sender keeps its data and retries after `retry_after_s`."""

    def __init__(self, message: str, *, reason: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class HasRoom(Protocol):
    """The part of the log that admission uses."""

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes may be written."""


class Admission:
    """Counts the bytes of requests between their arrival and their ACK; thread-safe."""

    def __init__(self, log: HasRoom, *, inflight_bytes_max: int = limits.INFLIGHT_BYTES_MAX) -> None:
        self._log = log
        self._inflight_bytes_max = inflight_bytes_max
        self._inflight_bytes = 0
        self._lock = threading.Lock()

    @property
    def inflight_bytes(self) -> int:
        """Number of bytes being received now."""
        return self._inflight_bytes

    @contextmanager
    def request(self) -> Iterator[Claim]:
        """Claim room for one request; released at the end, even after an error."""
        claim = Claim(self)
        try:
            yield claim
        finally:
            self._move(-claim.size)

    def _move(self, size: int) -> None:
        with self._lock:
            self._inflight_bytes += size

    def _claim(self, size: int) -> None:
        with self._lock:
            # A single request is always admitted; otherwise one larger than the limit could never succeed.
            if self._inflight_bytes and self._inflight_bytes + size > self._inflight_bytes_max:
                raise Busy(
                    "too much is being received at once",
                    reason="inflight",
                    retry_after_s=limits.RETRY_AFTER_S,
                )
            self._inflight_bytes += size
        if not self._log.has_room(size):
            self._move(-size)
            raise Busy(
                "the collector's disk is full: the store is slow or unavailable",
                reason="disk",
                retry_after_s=limits.RETRY_AFTER_DISK_S,
            )


class Claim:
    """The bytes admitted for one request."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.size = 0

    def grow_to(self, size: int) -> None:
        """Increase the claim to `size` bytes in total. Raises: Busy."""
        if size > self.size:
            self._admission._claim(size - self.size)
            self.size = size
