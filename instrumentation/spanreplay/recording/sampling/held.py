"""Holds what a unit records in memory until it is known whether the unit is kept; then all of it is written, or none.

A unit that takes more memory than it may is written at once, and kept.
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
        """Hold so many bytes more; whether there is room for them."""
        with self._lock:
            self.held_bytes += size
            return self.held_bytes <= config.HELD_BYTES_MAX

    def give_back(self, size: int) -> None:
        with self._lock:
            self.held_bytes -= size


class HeldWriter(SpoolWriter):
    """The spool of a unit that may be left out; thread-safe, and as safe in signal handlers as what it inherits.

    `kept` is called once, when the payloads have been written that were held until then.
    """

    def __init__(self, *args: Any, kept: Callable[[], object], **options: Any) -> None:
        super().__init__(*args, **options)
        self.is_kept: Callable[[], bool] = _unknown
        """Asked with each payload: whether the unit is kept, whatever comes."""
        self._on_kept = kept
        self._state = _HELD
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.is_too_large = False
        """Whether it is kept because it took more memory than it may."""

    @property
    def is_held(self) -> bool:
        """Whether nothing is decided yet."""
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
        """Write what is held, and from now on at once. Idempotent, never raises."""
        with self._lock:
            if self._state != _HELD:
                return
            held = self._forget(_KEPT)
            for payload in held:
                super().append(payload)
        self._on_kept()

    def leave_out(self) -> bool:
        """Forget what is held, and take nothing more; False if the unit is kept already."""
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
        """Release the file; a unit that nobody has decided about is kept."""
        self.keep()
        super().close()

    def _reset_after_fork(self) -> None:
        super()._reset_after_fork()
        self._held, self._held_bytes = [], 0  # what is held belongs to the process that holds it
        if self._state == _HELD:
            self._state = _LEFT_OUT


_memory: Final = _Memory()


def _forked() -> None:
    _memory.__init__()  # type: ignore[misc]  # what other modules know stays the same object


os.register_at_fork(after_in_child=_forked)
