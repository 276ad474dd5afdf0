"""Denies actions of a replay outside its calls: programs, native code, and writes that bypass the overlay.

An audit hook sees them, whichever library is involved; `netguard` does the same for connections. Each denial is one
`effect_blocked` divergence with the place in the agent's code, and raises ReplayMiss there. Inside a call that the plan
lets go live, everything is allowed.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from spanreplay.model import ids
from spanreplay.model.errors import ReplayMiss
from spanreplay.replayer.divergence import Divergence
from spanreplay.replayer.resolve.session import Session
from spanreplay.replayer.sandbox import native_calls
from spanreplay.replayer.sandbox.going_live import is_live
from spanreplay.replayer.sandbox.launchers import starts_the_agent
from spanreplay.runtime.lanes import current_lane
from spanreplay.runtime.process import audit_hook as audit
from spanreplay.runtime.process.outside_io import SAID, describe_program, is_harmless_spawn, is_telemetry_stack
from spanreplay.runtime.run import Run

PLACES_MAX: Final = 200
_WRITE_FLAGS: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES: Final = (
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.chown",
    "os.utime",
    "os.setxattr",
    "os.removexattr",
)
_PROGRAMS: Final = (
    "subprocess.Popen",
    "os.system",
    "os.posix_spawn",
    "os.exec",
    "os.spawn",
    "os.forkpty",
    "os.startfile",
    "pty.spawn",
)
_DEVICES: Final = ("/dev/", "/proc/self/", "/proc/thread-self/")
_READS_DENIED: Final = frozenset({"clock", "random", "file", "environment", "device"})
HINT: Final = "declare the function that does it a boundary, or let its call go live in the plan"

IsOwn = Callable[[str], bool]


def block(session: Session, run: Run, boundary: str, what: str) -> ReplayMiss:
    """Note a denied effect, once per place, and return the exception to raise."""
    return _deny(session, run, boundary, what, ids.find_caller(2))


def _deny(session: Session, run: Run, boundary: str, what: str, code: str) -> ReplayMiss:
    message = f"{what} was denied: no boundary covers it" + (f" ({code})" if code else "")
    if not any(d.boundary == boundary and d.code == code for d in session.divergences):
        session.add_divergence(
            Divergence(
                kind="effect_blocked",
                boundary=boundary,
                message=message,
                lane=current_lane(run.root_lane).path,
                code=code,
                hint=HINT,
            )
        )
    return ReplayMiss(message)


class StrictReads:
    """Replaces a recording's leaks in a strict replay: reads that aren't recorded are denied."""

    def __init__(self, session: Session, run: Run) -> None:
        self._session = session
        self._run = run

    @property
    def seq(self) -> int:
        """Always 0: the recording knows which call a read followed."""
        return 0

    def add(self, kind: str, what: str, detail: str, code: str, *, is_hole: bool, seq: int | None = None) -> None:
        """Deny one read. Raises: ReplayMiss."""
        if kind in _READS_DENIED and not is_live(self._run):
            boundary = f"{kind}:{what}"
            raise _deny(self._session, self._run, boundary, SAID[kind].format(what=what, detail=detail), code)

    def look(self, seq: int) -> None:
        """Do nothing: a replay sees no file events."""

    def note_background(self, library: str) -> None:
        """Do nothing: the recording says so."""

    def note_drawing(self, library: str) -> None:
        """Do nothing, likewise."""

    def describe(self) -> list[dict[str, Any]]:
        """Always empty: denials are divergences."""
        return []

    def for_manifest(self) -> dict[str, Any]:
        """Always empty, likewise."""
        return {}


class _Asking(threading.local):
    is_now = False


class Sandbox:
    """Denies the actions of one replay. Thread-safe."""

    def __init__(self, session: Session, run: Run, is_own: IsOwn, is_outside: Callable[[], bool]) -> None:
        self._session = session
        self._run = run
        self._is_own = is_own
        self._is_outside = is_outside
        self._asking = _Asking()

    def listen(self) -> None:
        """Start denying, until the run ends."""
        audit.listen((*_PROGRAMS, *native_calls.EVENTS, "open", *_CHANGES), self._hear)

    def close(self) -> None:
        """Stop denying."""
        audit.ignore(self._hear)

    def hear_program(self, program: Any, frame: FrameType) -> None:
        """Deny a program that is started without an audit event. Raises: ReplayMiss."""
        if not self._run.is_ended and not self._is_outside():
            self._check_program("fork_exec", (program,), frame)

    def hear_symbol(self, symbol: tuple[Any, ...], frame: FrameType) -> None:
        """Deny a library function that ctypes has cached. Raises: ReplayMiss."""
        if not (self._run.is_ended or self._asking.is_now or self._is_outside()):
            self._check("ctypes.dlsym", symbol, frame)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self._run.is_ended or self._asking.is_now:
            return
        self._asking.is_now = True
        try:
            if self._is_outside():
                return
            frame = sys._getframe().f_back  # the hook
            self._check(event, args, None if frame is None else frame.f_back)
        finally:
            self._asking.is_now = False

    def _check(self, event: str, args: tuple[Any, ...], frame: FrameType | None) -> None:
        if event in _PROGRAMS:
            self._check_program(event, args, frame)
        elif event in native_calls.EVENTS:
            library = native_calls.describe_call(event, args, frame)
            if library and not is_live(self._run):
                raise block(self._session, self._run, "native:ctypes", f"calling into {library} with ctypes")
        elif event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & _WRITE_FLAGS:
                self._check_write(event, path, frame)
        else:
            self._check_write(event, args[1] if event in ("os.link", "os.symlink") else args[0], frame)

    def _check_program(self, event: str, args: tuple[Any, ...], frame: FrameType | None) -> None:
        if is_harmless_spawn(frame) or is_live(self._run):
            return
        if event == "os.exec" and not any(self._session.counts.values()) and starts_the_agent(args):
            return
        if is_telemetry_stack(frame):
            raise FileNotFoundError("a replay starts no programs")
        name = describe_program(args[0] or (args[1] if len(args) > 1 else "")) if args and args[0:1] else "a program"
        raise block(self._session, self._run, "process:start", f"starting {name or 'a program'} with {event}")

    def _check_write(self, event: str, path: Any, frame: FrameType | None) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)) or not os.fsdecode(path):
            return  # the empty path names nothing: the kernel refuses it
        text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 -- text
        if text.startswith(_DEVICES) or "__pycache__" in text or self._is_own(text):
            return
        if event == "open" and os.path.isdir(text):  # noqa: PTH112 -- text
            return  # a name for an `opener`, which opens another file and is checked then
        if is_live(self._run) or is_telemetry_stack(frame):
            return
        raise block(self._session, self._run, "file:write", f"changing {os.path.basename(text)} with {event}")  # noqa: PTH119 -- text


def install(session: Session, run: Run, is_own: IsOwn, is_outside: Callable[[], bool] = lambda: False) -> Sandbox:
    """Deny effects until the run ends."""
    made = Sandbox(session, run, is_own, is_outside)
    made.listen()
    return made
