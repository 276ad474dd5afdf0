"""SIGTERM with its default disposition: the run ends first, then the process ends by the signal.

The program still sees the default disposition: `signal.getsignal` and `signal.signal` report it, a handler of its own
replaces ours, and the parent process sees the same status. Python runs our handler between two bytecodes of the main
thread, so native code that does not return delays the end.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not in the stubs; the functions of signal are wrapped
import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import config, guard, ids

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

__all__ = ["Termination"]

_SIGNAL: Final = signal.SIGTERM
_AT_ONCE_MS: Final = 250


class Termination:
    """Calls `finish` once before the process dies of SIGTERM; it has `config.END_BY_SIGNAL_MAX_MS` to return."""

    def __init__(self, finish: Callable[[], object]) -> None:
        self._finish = finish
        self._set = signal.signal
        self._done: Any = None

    def install(self, patches: Patches) -> None:
        """Stand in for the default disposition, now and whenever the program restores it."""
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may set handlers
        patches.wrap(signal, "signal", self._set_by_program)
        patches.wrap(signal, "getsignal", self._hide)
        if signal.getsignal(_SIGNAL) is signal.SIG_DFL:
            self._set(_SIGNAL, self._end)

    @staticmethod
    def leave_to_system() -> None:
        """Restore the signal in a process that is a part of another one's run, and has nothing to finish here.

        A signal that comes just before a wait runs no handler until that wait is over, so our handler would not end the
        process.
        """
        if isinstance(getattr(_signal.getsignal(_SIGNAL), "__self__", None), Termination):
            _signal.signal(_SIGNAL, _signal.SIG_DFL)

    def _set_by_program(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        is_default = len(args) == 2 and not kwargs and args[0] == _SIGNAL and args[1] == signal.SIG_DFL
        before = wrapped(_SIGNAL, self._end) if is_default else wrapped(*args, **kwargs)
        return signal.SIG_DFL if before == self._end else before

    def _hide(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        found = wrapped(*args, **kwargs)
        return signal.SIG_DFL if found == self._end else found

    def _end(self, number: int, frame: FrameType | None) -> None:
        """The handler. If the main thread holds a lock that `finish` needs, it goes on until the agent's next line."""
        if self._done is None and guard.guarded("the end by a signal", self._finish_elsewhere):
            if self._is_done(_AT_ONCE_MS) or not guard.guarded("the end by a signal", self._hold_agent, frame):
                self._die()
            return
        self._die()

    def _die(self) -> None:
        self._set(_SIGNAL, signal.SIG_DFL)
        os.kill(os.getpid(), _SIGNAL)

    def _finish_elsewhere(self) -> bool:
        """Finish in a thread of our own; whatever happens to it, the signal is sent again in time."""
        self._done = done = _thread.allocate_lock()
        done.acquire()

        def finish() -> None:
            try:
                guard.guarded("the end of the run", self._finish)
            finally:
                done.release()

        def signal_again() -> None:
            self._is_done(config.END_BY_SIGNAL_MAX_MS)
            os.kill(os.getpid(), _SIGNAL)

        _thread.start_new_thread(finish, ())
        _thread.start_new_thread(signal_again, ())
        return True

    def _is_done(self, wait_ms: int) -> bool:
        done = self._done
        if done is None or not done.acquire(timeout=wait_ms / 1000):
            return False
        done.release()
        return True

    def _hold_agent(self, frame: FrameType | None) -> bool:
        """Stop the agent's own code: its next line waits for the end of the process."""

        def hold(found: FrameType, event: str, argument: Any) -> Any:
            if ids.is_agent_file(found.f_code.co_filename):
                self._is_done(config.END_BY_SIGNAL_MAX_MS)
                self._die()
            return hold

        sys.settrace(hold)
        while frame is not None:
            frame.f_trace = hold
            frame = frame.f_back
        return True
