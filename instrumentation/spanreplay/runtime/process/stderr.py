"""Keeps the agent's output to standard error, as redacted text, while it passes through unchanged.

A replay compares it on request (`--compare stderr`). Excluded on both sides are lines of ours and of OpenTelemetry, and
output written inside a call, which a replay serves instead of running it.
"""

from __future__ import annotations

import logging
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import config, guard
from spanreplay.runtime.lanes import current_crossing
from spanreplay.runtime.process.kept_output import KeptOutput
from spanreplay.runtime.run import active_run

if TYPE_CHECKING:
    from spanreplay.redact import RunRedactor

_FRAMES_MAX: Final = 60
_OURS: Final = ("spanreplay", "opentelemetry")
_LOGS: Final = logging.Logger.callHandlers.__code__
_SAYS: Final = guard.write_stderr.__code__


def _is_ours(frame: FrameType | None) -> bool:
    """Whether this package writes a line here, or a log record of ours or of OpenTelemetry's causes it."""
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return False
        if frame.f_code is _SAYS:
            return True
        if frame.f_code is _LOGS:
            return str(frame.f_locals["record"].name).partition(".")[0] in _OURS
        frame = frame.f_back
    return False


def _is_inside() -> bool:
    run = active_run()
    return run is not None and current_crossing(run.root_lane) is not None


class ErrorOutput:
    """Wraps `sys.stderr.buffer.write`. Output that programs and C code write to the descriptor is not seen."""

    def __init__(self) -> None:
        self._kept = KeptOutput(config.STDERR_BYTES_MAX)
        self._buffer: Any = None

    def install(self) -> None:
        """Start keeping, if standard error has a buffer of its own."""
        buffer = getattr(sys.__stderr__, "buffer", None)
        if buffer is None or not hasattr(buffer, "__dict__"):
            return
        write = buffer.write

        def capture(chunk: Any, /) -> Any:
            count = write(chunk)
            if not _is_inside() and not _is_ours(sys._getframe().f_back):
                guard.guarded("standard error", self._kept.add, chunk, count)
            return count

        buffer.write = capture
        self._buffer = buffer

    def uninstall(self) -> None:
        """Stop keeping."""
        if self._buffer is not None:
            self._buffer.__dict__.pop("write", None)
            self._buffer = None

    def summarize(self, redactor: RunRedactor, *, flushes: bool = True) -> dict[str, Any]:
        """The output in the form of `OutputCapture.summarize`; {} if nothing could be kept."""
        if self._buffer is None:
            return {}
        return self._kept.summarize(redactor, (sys.stderr, sys.__stderr__) if flushes else ())
