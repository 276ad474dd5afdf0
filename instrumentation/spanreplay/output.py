"""Captures what the process writes to standard output, byte for byte, while it passes through unchanged."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from spanreplay import config, guard, printed
from spanreplay.handovers import STDOUT
from spanreplay.lanes import thread_lane
from spanreplay.run import active_run

_FRAMES_MAX: Final = 4

if TYPE_CHECKING:
    from spanreplay.redact import RunRedactor


def _comes_through(frame: FrameType | None) -> bool:
    """Whether a text that is written here was given to the object in `sys.stdout`'s place."""
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return False
        first = frame.f_code.co_varnames[:1]
        if frame.f_code.co_argcount and frame.f_locals.get(first[0]) is sys.stdout:
            return True
        frame = frame.f_back
    return False


class OutputCapture:
    """Wraps `sys.stdout.buffer.write`, below the text layer, and `sys.stdout.write`, where it is known who writes.

    `sys.stdout` stays the same object. What child processes and C code write straight to the descriptor is not seen.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._hash = hashlib.sha256()
        self._total = 0
        self._buffer: Any = None
        self._stdout: Any = None
        self._real: Any = None

    def install(self) -> bool:
        """Start capturing; False if standard output has no buffer of its own (already replaced)."""
        stdout = sys.__stdout__
        buffer = getattr(stdout, "buffer", None)
        if stdout is None or buffer is None or not hasattr(buffer, "__dict__"):
            return False
        write = buffer.write

        def capture(chunk: Any, /) -> Any:
            count = write(chunk)
            guard.guarded("standard output", self._keep, chunk, count)
            return count

        buffer.write = capture
        self._buffer = buffer
        if hasattr(stdout, "__dict__") and hasattr(stdout, "write"):
            self._stdout, self._real = stdout, stdout.write
            stdout.write = self.write  # type: ignore[method-assign]  # put back by `uninstall`
        return True

    def uninstall(self) -> None:
        """Stop capturing."""
        if self._buffer is not None:
            self._buffer.__dict__.pop("write", None)
            self._buffer = None
        if self._stdout is not None:
            self._stdout.__dict__.pop("write", None)
            self._stdout = None

    def _keep(self, chunk: Any, count: Any) -> None:
        piece = bytes(chunk)[: count if isinstance(count, int) else None]
        with self._lock:
            self._total += len(piece)
            if self._kept_bytes < config.STDOUT_BYTES_MAX:
                self._kept.append(piece)
                self._kept_bytes += len(piece)
            self._hash.update(piece)

    @property
    def is_replaced(self) -> bool:
        """Whether the agent has put another object in the place of `sys.stdout`."""
        return sys.stdout is not self._stdout

    def write(self, text: str, times: int = 1) -> Any:
        """`sys.stdout.write`: in a replay when it is this thread's turn; it stands for so many recorded writes."""
        real = self._real if self._real is not None else sys.stdout.write
        run = active_run()
        if run is None:
            return real(text)
        handovers = run.handovers
        if handovers.is_shared:
            count = handovers.pass_through(STDOUT, thread_lane(run.root_lane).path, lambda: real(text), times)
        else:
            count = real(text)
        guard.guarded("what a call prints", printed.note, text, self.is_replaced and _comes_through(sys._getframe(1)))
        return count

    def note(self, text: str) -> None:
        """Take in what reached the user past `sys.stdout`, such as a prompt on a console."""
        raw = text.encode("utf-8", "backslashreplace")
        self._keep(raw, len(raw))

    def summarize(self, redactor: RunRedactor) -> dict[str, Any]:
        """What was written: bytes, redacted text, and the hash of that text (or of the bytes where they were cut)."""
        if self._buffer is None:
            return {}
        for stream in (sys.stdout, sys.__stdout__):  # the agent may have put another one in its place
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()  # type: ignore[union-attr]  # either may be None
        with self._lock:
            raw, total = b"".join(self._kept), self._total
            digest = self._hash.hexdigest()
        text = redactor.text(raw.decode("utf-8", "backslashreplace"))
        if total == len(raw):
            digest = digest_of(text)
        return {"bytes": total, "sha256": digest, "text": text}


def digest_of(text: str) -> str:
    """SHA-256 of what was written, as hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
