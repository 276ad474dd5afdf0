"""Captures the process's standard output, byte for byte, while it passes through unchanged."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import config, guard, ids
from spanreplay.model.distributions import find_distribution
from spanreplay.runtime.caller.caller import FOREIGN, LIBRARY, classify
from spanreplay.runtime.calls import printed
from spanreplay.runtime.lanes import thread_lane
from spanreplay.runtime.order.lock_order import STDOUT, LockOrder
from spanreplay.runtime.process.kept_output import KeptOutput
from spanreplay.runtime.process.stderr import ErrorOutput
from spanreplay.runtime.run import active_run

_FRAMES_MAX: Final = 4

if TYPE_CHECKING:
    from spanreplay.redact import RunRedactor
    from spanreplay.runtime.run import Run


def _comes_through(frame: FrameType | None) -> bool:
    """Whether a text written here was passed to the object that replaces `sys.stdout`."""
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return False
        first = frame.f_code.co_varnames[:1]
        if frame.f_code.co_argcount and frame.f_locals.get(first[0]) is sys.stdout:
            return True
        frame = frame.f_back
    return False


def _note_drawing(run: Run) -> None:
    """Note that a thread which a library has made for itself writes: how often it does so depends on timing."""
    if run.leaks is None or not run.resolver.connects:
        return
    thread = threading.current_thread()
    work = vars(thread).get("_target") or type(thread).run
    filename = getattr(getattr(work, "__code__", None), "co_filename", "")
    if filename and not ids.is_stdlib_file(filename) and classify(filename) in (LIBRARY, FOREIGN):
        run.leaks.note_drawing(find_distribution(filename))


class OutputCapture:
    """Wraps `sys.stdout.buffer.write`, below the text layer, and `sys.stdout.write`, where the writer is known.

    `sys.stdout` remains the same object. Output that child processes and C code write straight to the descriptor is not
    seen.
    """

    def __init__(self) -> None:
        self._kept = KeptOutput(config.STDOUT_BYTES_MAX)
        self._errors = ErrorOutput()
        self.flushes = True
        """Whether the streams' buffers are flushed first; a process that dies of a signal loses them."""
        self._buffer: Any = None
        self._stdout: Any = None
        self._real: Any = None
        self.characters = 0
        """How many characters were written to `sys.stdout`."""
        self._held_by: LockOrder | None = None
        """The lock acquisition order in which texts may wait for their turn."""

    def install(self) -> bool:
        """Start capturing; return False if standard output has no buffer of its own (already replaced)."""
        stdout = sys.__stdout__
        buffer = getattr(stdout, "buffer", None)
        if stdout is None or buffer is None or not hasattr(buffer, "__dict__"):
            return False
        write = buffer.write

        def capture(chunk: Any, /) -> Any:
            count = write(chunk)
            guard.guarded("standard output", self._kept.add, chunk, count)
            for listen in printed.byte_listeners:
                guard.guarded("standard output", listen, bytes(chunk))
            return count

        buffer.write = capture
        self._buffer = buffer
        if hasattr(stdout, "__dict__") and hasattr(stdout, "write"):
            self._stdout, self._real = stdout, stdout.write
            stdout.write = self.write  # type: ignore[method-assign]  # put back by `uninstall`
        self._errors.install()
        return True

    def uninstall(self) -> None:
        """Stop capturing."""
        if self._buffer is not None:
            self._buffer.__dict__.pop("write", None)
            self._buffer = None
        if self._stdout is not None:
            self._stdout.__dict__.pop("write", None)
            self._stdout = None
        self._errors.uninstall()

    @property
    def is_replaced(self) -> bool:
        """Whether the agent has replaced `sys.stdout`."""
        return sys.stdout is not self._stdout

    def write(self, text: str, times: int = 1) -> Any:
        """`sys.stdout.write`; in a replay, on this thread's turn. It stands for `times` recorded writes."""
        real = self._real if self._real is not None else sys.stdout.write
        self.characters += len(text)
        run = active_run()
        if run is None:
            return real(text)
        if threading.current_thread() is not threading.main_thread():
            guard.guarded("who draws", _note_drawing, run)
        lock_order = run.lock_order
        if lock_order.is_shared:
            self._held_by = lock_order
            lane = thread_lane(run.root_lane).path
            count = lock_order.pass_later(STDOUT, lane, lambda: real(text), len(text), times)
        else:
            count = real(text)
        guard.guarded(
            "what a call prints", printed.note, text, self.is_replaced and _comes_through(sys._getframe().f_back)
        )
        return count

    def note(self, text: str) -> None:
        """Note output that reached the user without passing `sys.stdout`, such as a prompt on a console."""
        raw = text.encode("utf-8", "backslashreplace")
        self._kept.add(raw, len(raw))

    def summarize(self, redactor: RunRedactor) -> dict[str, Any]:
        """The output as size in bytes, redacted text and a hash; {} if nothing could be kept."""
        if self._buffer is None:
            return {}
        if self._held_by is not None:
            self._held_by.do_held(STDOUT)
        return self._kept.summarize(redactor, (sys.stdout, sys.__stdout__) if self.flushes else ())

    def describe(self, redactor: RunRedactor) -> dict[str, dict[str, Any]]:
        """Both standard streams, for the manifest and the verdict."""
        errors = self._errors.summarize(redactor, flushes=self.flushes)
        return {"stdout": self.summarize(redactor), **({"stderr": errors} if errors else {})}
