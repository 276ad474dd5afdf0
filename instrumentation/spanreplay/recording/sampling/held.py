"""Holds a unit's records in memory until the decision to keep the unit; then writes all of them, or none.

A unit that exceeds a memory limit is written at once and kept.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final

from spanreplay.model import config
from spanreplay.recording.spool.writer import SpoolWriter

__all__ = ["HeldWriter"]

_HELD, _KEPT, _LEFT_OUT = "held", "kept", "left out"


def _unknown() -> bool:
    return False


class _Memory:
    """The bytes that all units of this process hold together; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.held_bytes = 0

    def take(self, size: int) -> bool:
        """Count `size` more held bytes; return whether there is room for them."""
        with self._lock:
            self.held_bytes += size
            return self.held_bytes <= config.HELD_BYTES_MAX

    def give_back(self, size: int) -> None:
        with self._lock:
            self.held_bytes -= size


class HeldWriter(SpoolWriter):
    """The spool writer of a unit that may be left out; thread-safe, and as safe in signal handlers as its base class.

    `kept` is called once, after the held payloads have been written.
    """

    def __init__(self, *args: Any, kept: Callable[[], object], **options: Any) -> None:
        super().__init__(*args, **options)
        self.is_kept: Callable[[], bool] = _unknown
        """Called for each payload: whether the unit is already certain to be kept."""
        self._on_kept = kept
        self._state = _HELD
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.is_too_large = False
        """Whether the unit is kept because it exceeded a memory limit."""

    @property
    def is_held(self) -> bool:
        """Whether the decision is still open."""
        return self._state == _HELD

    def append(self, payload: bytes) -> bool:
        """Hold or write one payload; False if nothing was written. Never raises."""
        if self._state == _KEPT:
            return super().append(payload)
        with self._lock:
            if self._state == _LEFT_OUT:
                return False
            if self._state == _HELD:
                self._hold(payload)
                return False
        return super().append(payload)

    def _hold(self, payload: bytes) -> None:
        self._held.append(payload)
        self._held_bytes += len(payload)
        has_room = _memory.take(len(payload)) and self._held_bytes <= config.HELD_UNIT_BYTES_MAX
        self.is_too_large = not has_room
        if self.is_too_large or self.is_kept():
            self.keep()

    def keep(self) -> None:
        """Write all held payloads now, and later ones at once. Idempotent, never raises."""
        with self._lock:
            if self._state != _HELD:
                return
            held = self._forget(_KEPT)
            for payload in held:
                super().append(payload)
        self._on_kept()

    def leave_out(self) -> bool:
        """Drop the held payloads and accept no more; False if the unit is kept already."""
        with self._lock:
            if self._state == _HELD:
                self._forget(_LEFT_OUT)
            return self._state == _LEFT_OUT

    def _forget(self, state: str) -> list[bytes]:
        self._state = state
        held, self._held = self._held, []
        _memory.give_back(self._held_bytes)
        self._held_bytes = 0
        return held

    def close(self) -> None:
        """Release the file; an undecided unit is kept."""
        self.keep()
        super().close()

    def _reset_after_fork(self) -> None:
        super()._reset_after_fork()
        self._held, self._held_bytes = [], 0  # held payloads belong to the parent
        if self._state == _HELD:
            self._state = _LEFT_OUT


_memory: Final = _Memory()


def _forked() -> None:
    _memory.__init__()  # type: ignore[misc]  # other modules keep a reference to this object


os.register_at_fork(after_in_child=_forked)
