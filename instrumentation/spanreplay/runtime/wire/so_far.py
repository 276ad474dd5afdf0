"""The record of an unfinished stream: rewritten now and then, so that a killed process leaves what it had read.

Nothing is written in a stream's first second. All of the text is redacted each time, then its end is held back: a
secret that has only partly arrived is not recognised yet. The time of the next write depends on how long this one took
(docs/decisions/0015-streams-that-go-on.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.runtime.wire.http_reply import HttpReply
from spanreplay.runtime.wire.http_wire import encode_so_far

if TYPE_CHECKING:
    from spanreplay.runtime.calls.open_call import Crossing

_cpu_ns: Final = time.thread_time_ns  # the real function, whatever is patched later
FIRST_MS: Final = 1_000
"""A shorter stream is written once, at its end."""
_SHARE: Final = 50
"""Writing takes at most one part in this many of a stream's time."""
_GROWTH: Final = 10
"""At least one part in this many of a stream's time so far, and at least FIRST_MS, lies between two writes."""


class SoFar:
    """Decides when the record of one stream is rewritten, and does so."""

    __slots__ = ("_due_ms",)

    def __init__(self) -> None:
        self._due_ms = FIRST_MS

    def note(self, crossing: Crossing, elapsed_ms: int, read: Callable[[], HttpReply | None]) -> None:
        """A part has come; `read` returns the response with the parts so far."""
        if elapsed_ms >= self._due_ms:
            guard.guarded("recording a stream so far", self._write, crossing, elapsed_ms, read)

    def _write(self, crossing: Crossing, elapsed_ms: int, read: Callable[[], HttpReply | None]) -> None:
        began_ns = _cpu_ns()
        self._due_ms = elapsed_ms + FIRST_MS  # also if it fails
        run = crossing.run
        reply = read() if run.resolver.keeps or run.is_continued else None
        text: Any = "" if reply is None else encode_so_far(run, reply)
        if text:
            crossing.write_open(text)
        took_ms = (_cpu_ns() - began_ns) // 1_000_000
        self._due_ms = elapsed_ms + max(FIRST_MS, elapsed_ms // _GROWTH, took_ms * _SHARE)
