"""Signals that reach a handler of the program: when recorded, each is noted where it came.

A person stops an agent with Ctrl-C, a container with SIGTERM; a service is told to read its settings again. The handler
runs between two instructions of the main thread, wherever that is, and what the program does then depends on it.

Signals that a replay brings about again by itself are not noted: those that the program sends itself, the timers of the
process (`alarms.py`) and the end of a child process. Neither are those of processes that another process of the run has
started.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not in the stubs; the functions of signal are wrapped
import _thread
import os
import posix  # os.getpid is a recorded read
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.model.here import PACKAGE
from spanreplay.runtime.lanes import outermost_crossing, outside_calls
from spanreplay.runtime.order.loops import running_loop
from spanreplay.runtime.order.signal_names import IN_CALL, IN_LOOP, IN_PAUSE
from spanreplay.runtime.order.wait_ends import watched
from spanreplay.runtime.run import active_run

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches
    from spanreplay.runtime.run import Run

__all__ = ["Received", "install", "is_of_program", "written"]

_BY_THEMSELVES: Final = frozenset(
    int(getattr(signal, name)) for name in ("SIGALRM", "SIGVTALRM", "SIGPROF", "SIGCHLD") if hasattr(signal, name)
)
_LOOPS: Final = ("_run_once", "unrolled_run", "run_forever", "run")
"""Functions that run the callbacks of an event loop."""
_OF_LOOPS: Final = ("asyncio", "selectors", "trio", "outcome", "uvloop", "spanreplay")
_BOOKKEEPING: Final = (
    "redact",
    "recording",
    "model",
    "runtime.emit",
    "runtime.run",
    "runtime.reads",
    "runtime.calls.open",
)
"""Modules of ours that call neither the program nor the outside."""
_NOT_WAITING: Final = (
    *("runtime.calls", "runtime.lanes", "runtime.caller", "runtime.context_variables", "runtime.order.loops"),
    *("runtime.who", "runtime.timer_names"),
)
"""Modules of ours that call the program, but nothing in the standard library that waits for the outside."""
_BY_OTHERS: Final = ("seams.transport.http", "runtime.order.steps")
"""Modules of ours that wait for the outside only in functions of others."""
_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120 -- pathlib costs start-up
_main: Final = threading.main_thread()
_own: Final[set[int]] = set()
"""Signals that the program has sent to itself and that have not reached their handler."""


class _State:
    is_pausing = False


_state: Final = _State()


def written() -> int:
    """How many characters the program has written to standard output."""
    run = active_run()
    return 0 if run is None or run.output is None else run.output.characters


class Received:
    """A handler of the program; notes the signal, or that it has come again, before it runs."""

    __slots__ = ("handler",)

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None, *, is_deferred: bool = False) -> Any:
        """Run the handler. One function, because its frame is in the traceback of what the handler raises."""
        if not is_deferred and guard.guarded("a signal during a call's record", _Deferred.make, self, number, frame):
            return None
        run = active_run()
        if run is None:
            return self.handler(number, frame)
        guard.guarded("a signal", _note, run, number, frame)
        with outside_calls(run.root_lane), watched():
            return self.handler(number, frame)


def _is_of_python(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith((_LIBRARY, "<frozen ")) and "-packages" not in file


def is_of_program(frame: FrameType | None) -> bool:
    """Whether a frame is the program's or one of its libraries', and neither Python's nor ours."""
    return frame is not None and not (_is_of_python(frame) or frame.f_code.co_filename.startswith(PACKAGE))


class _Deferred:
    """A signal that came while a call was being written down: what its handler raises would cut the record.

    The handler runs at the next instruction that is not ours, a moment later.
    """

    def __init__(self, received: Received, number: int) -> None:
        self._received, self._number = received, number
        self._frame: FrameType | None = None

    @classmethod
    def make(cls, received: Received, number: int, frame: FrameType | None) -> bool:
        """Whether the signal is deferred; not where a debugger or a coverage tool traces the thread."""
        if sys.gettrace() is not None or not _is_busy(frame):
            return False
        while frame is not None and (frame.f_code.co_filename.startswith(PACKAGE) or _is_busy(frame)):
            frame = frame.f_back
        if frame is None:
            return False
        deferred = cls(received, number)
        deferred._frame, frame.f_trace, frame.f_trace_opcodes = frame, deferred._run, True
        sys.settrace(deferred._run)
        return True

    def _run(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame is not self._frame and (frame.f_code.co_filename.startswith(PACKAGE) or _is_busy(frame)):
            return None
        sys.settrace(None)
        if self._frame is not None:
            self._frame.f_trace, self._frame.f_trace_opcodes, self._frame = None, False, None
        self._received(self._number, frame, is_deferred=True)
        return None


def _is_busy(frame: FrameType | None) -> bool:
    """Whether code of ours runs that calls neither the program nor anything that waits for the outside."""
    at, is_helped = frame, True
    while at is not None and not at.f_code.co_filename.startswith(PACKAGE):
        is_helped = is_helped and _is_of_python(at)
        at = at.f_back
    name = "" if at is None else at.f_globals.get("__name__", "").removeprefix("spanreplay.")
    if name.startswith(_BOOKKEEPING) or (is_helped and name.startswith(_NOT_WAITING)):
        return True
    return at is frame and name.startswith(_BY_OTHERS)


def _note(run: Run, number: int, frame: FrameType | None) -> None:
    if number in _BY_THEMSELVES:
        return
    if number in _own:
        _own.discard(number)
        return
    if not run.is_member:
        run.order.receive(run.root_lane, number, lambda: _find_place(run, frame))


def _find_place(run: Run, frame: FrameType | None) -> str:
    if _state.is_pausing:
        return IN_PAUSE
    loop = running_loop()
    if loop is not None and (_is_in_native_code(loop) or _is_between_callbacks(frame)):
        return IN_LOOP
    crossing = outermost_crossing(run.root_lane)
    if crossing is not None:
        return f"{IN_CALL}{crossing.seq}"
    while frame is not None and not is_of_program(frame):
        frame = frame.f_back
    if frame is None:
        return IN_LOOP
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}:{code.co_name}:{frame.f_lasti}:{written()}"  # noqa: PTH119 -- cheap


def _is_in_native_code(loop: Any) -> bool:
    """Whether an event loop has no frames of its own: its callbacks then can't be told from what runs it."""
    return hasattr(loop, "run_forever") and not hasattr(loop, "_run_once")


def _is_between_callbacks(frame: FrameType | None) -> bool:
    """Whether an event loop itself was interrupted, and not the code that it runs."""
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OF_LOOPS:
        if frame.f_code.co_name in _LOOPS:
            return True
        frame = frame.f_back
    return False


def _unwrap(handler: Any) -> Any:
    return handler.handler if isinstance(handler, Received) else handler


def install(patches: Patches) -> None:
    """Note the signals that reach handlers which the program sets from now on, and Ctrl-C without a handler."""

    def set_handler(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if len(args) > 1 and callable(args[1]):
            args = (args[0], Received(args[1]), *args[2:])
        elif callable(kwargs.get("handler")):
            kwargs = {**kwargs, "handler": Received(kwargs["handler"])}
        result = wrapped(*args, **kwargs)
        run = active_run()
        if run is not None:
            run.order.expect_signals()
        return _unwrap(result)

    def get_handler(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return _unwrap(wrapped(*args, **kwargs))

    def pause(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        run = active_run()
        if run is not None and run.order.pause():
            return None
        _state.is_pausing = True
        try:
            return wrapped()
        finally:
            _state.is_pausing = False

    patches.wrap(signal, "signal", set_handler)
    patches.wrap(signal, "getsignal", get_handler)
    if hasattr(signal, "pause"):
        patches.wrap(signal, "pause", pause)
    _watch_own(patches)
    if threading.current_thread() is _main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _watch_own(patches: Patches) -> None:
    """Tell signals that the program sends to itself from those of others."""

    def watch(owner: Any, name: str, own: Callable[[], int] | None) -> None:
        def send(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            guard.guarded("a signal of the program's own", _expect, args, own)
            return wrapped(*args, **kwargs)

        if hasattr(owner, name):
            patches.wrap(owner, name, send)

    watch(signal, "raise_signal", None)
    watch(signal, "pthread_kill", None)
    watch(_thread, "interrupt_main", None)
    watch(os, "kill", posix.getpid)
    watch(os, "killpg", posix.getpgrp)


def _expect(args: tuple[Any, ...], own: Callable[[], int] | None) -> None:
    """Note a signal that the program sends; `own` gives the number that makes it the receiver, None if it always is."""
    number = args[-1] if args else signal.SIGINT
    if own is not None and (not args or args[0] not in (own(), 0)):
        return
    if isinstance(number, int) and 0 < number < signal.NSIG and isinstance(_signal.getsignal(number), Received):
        _own.add(int(number))
