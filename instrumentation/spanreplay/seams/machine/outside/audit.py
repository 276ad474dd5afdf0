"""For `doctor`: every outside read that the agent's code makes by itself, with its location and how it is treated.

Only a run that the doctor watches pays for this: each read looks up its caller.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard, ids
from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.caller.caller import is_agent
from spanreplay.runtime.process import audit_hook
from spanreplay.runtime.process.outside_io import describe_library, describe_program, is_importing, loader_of
from spanreplay.seams.machine.outside.leaks import leaking_run, note
from spanreplay.seams.machine.outside.watch import describe_address, describe_read

if TYPE_CHECKING:
    from spanreplay.runtime.lanes import Lane
    from spanreplay.runtime.reads import Draw, Reads, Source
    from spanreplay.runtime.run import Run

ROWS_MAX: Final = 500
RECORDED, NOT_RECORDED = "recorded", "not recorded"


class Audit:
    """The audit: what was read where. Thread-safe."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], str] = {}
        self._lock = make_lock()

    def add(self, kind: str, what: str, state: str, depth: int = 2) -> None:
        """Note one read; `depth` leads to the caller of the function that the agent called."""
        row = (kind, what, ids.find_caller(depth))
        with self._lock:
            if row[2] and len(self._rows) < ROWS_MAX:
                self._rows.setdefault(row, state)

    def describe(self) -> list[dict[str, str]]:
        """Return one row per kind of read and location, in the order of their first appearance."""
        with self._lock:
            return [{"kind": k, "what": w, "code": c, "state": s} for (k, w, c), s in self._rows.items()]


class CountedReads:
    """Reads of clock and random sources, counted and passed on to the log if they are recorded."""

    def __init__(self, audit: Audit, log: Reads | None) -> None:
        self._audit = audit
        self._log = log

    def read(self, lane: Lane, source: Source, draw: Draw, shifted: Callable[[int], Any] | None = None) -> Any:
        """As the log's `read`."""
        self._audit.add(source.kind, source.name, NOT_RECORDED if self._log is None else RECORDED)
        return draw() if self._log is None else self._log.read(lane, source, draw, shifted)

    def shift(self, family: str) -> int:
        """0: the clock is real."""
        return 0

    def misfit(self, lane: Lane, source: Source) -> None:
        """No-op: a real value fits."""

    def flush(self, lane: Lane) -> str:
        """As the log's `flush`."""
        return "" if self._log is None else self._log.flush(lane)

    def describe_pending(self) -> dict[str, dict[str, int]]:
        """As the log's `describe_pending`."""
        return {} if self._log is None else self._log.describe_pending()

    def settle(self) -> None:
        """Do nothing: this is a recording."""

    def finish(self) -> dict[str, Any]:
        """As the log's `finish`."""
        return {} if self._log is None else self._log.finish()


def attach(run: Run) -> None:
    """Count the reads of a run."""
    run.audit = Audit()
    run.reads = CountedReads(run.audit, run.reads)


# ── I/O that no patch sees ──────────────────────────────────────────────────────────────────────────
def _see_open(event: str, args: tuple[Any, ...], frame: FrameType) -> None:
    path, _, flags = args
    detail = describe_read(path, flags if isinstance(flags, int) else 0)
    if detail and not is_importing(frame):
        note("file", "open", detail, is_hole=is_agent(frame))


def _see_socket(event: str, args: tuple[Any, ...], frame: FrameType) -> None:
    if len(args) > 1 and args[1] is not None:
        address = describe_address(args[1])
        if address:
            note("socket", event, address)


def _see_process(event: str, args: tuple[Any, ...], frame: FrameType) -> None:
    note("process", event, describe_program(args[0] or args[1]) if args else "a program")


def _see_library(event: str, args: tuple[Any, ...], frame: FrameType) -> None:
    detail = describe_library(args[0] if args else None)
    if detail and is_agent(loader_of(frame)):
        note("native", event, detail)


_EVENTS: Final = {
    "open": _see_open,
    "socket.connect": _see_socket,
    "socket.sendto": _see_socket,
    "socket.sendmsg": _see_socket,
    "subprocess.Popen": _see_process,
    "os.system": _see_process,
    "os.posix_spawn": _see_process,
    "os.exec": _see_process,
    "ctypes.dlopen": _see_library,
}


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if leaking_run() is not None:
        hook = sys._getframe().f_back
        caller = None if hook is None else hook.f_back
        if caller is not None:  # None is the interpreter itself, which opens the agent's script
            guard.guarded("watching", _EVENTS[event], event, args, caller)


def listen() -> None:
    """Let the interpreter report I/O that bypasses every patch, for the rest of the process."""
    audit_hook.ignore(_hear)
    audit_hook.listen(_EVENTS, _hear)
