"""I/O that a recorded run did outside every boundary, by call site: a replay can't repeat it.

Each leak goes into the run's manifest under `leaks`; a leak that makes the run impossible to replay is also a hole, so
that the run says "not replayable because db.py:41 opened a socket outside of every boundary".
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard, ids
from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.caller.running import IN_UNIT
from spanreplay.runtime.calls.open_call import is_plumbing, is_suppressed
from spanreplay.runtime.lanes import current_crossing, current_lane
from spanreplay.runtime.process.outside_io import (
    SAID,
    is_harmless_spawn,
    is_library_log,
    is_telemetry_stack,
    quiet_state,
    strip_query,
)
from spanreplay.runtime.process.own_ports import serves
from spanreplay.runtime.processes import starting
from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.outside.devices import watches_files
from spanreplay.seams.machine.outside.native_connections import find_native

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

_processor_ns: Final = time.thread_time_ns  # the real function, whatever is patched later
NATIVE: Final = "native connection"
LEAKS_MAX: Final = 200
LANES_MAX: Final = 50
DETAIL_CHARACTERS_MAX: Final = 200
LOOK_EVERY_NS: Final = 10_000_000
"""How often calls look at the open descriptors at most."""
LOOK_SHARE: Final = 200
"""For how many times its own duration a look counts: it takes longer the more descriptors are open."""


class _Watch:
    """Open descriptors that no patch sees, as last looked at; for all runs. Races only cost another look.

    Through what this process watches files, and where its native code is connected to.
    """

    def __init__(self) -> None:
        self._through = ""
        self._peers: list[str] = []
        self._until_ns = self._took_ns = 0

    def find(self, *, is_first: bool) -> tuple[str, list[str]]:
        """Return what was seen, after looking again if it is time, or if it is a run's first look and takes no time."""
        now = ids.monotonic_ns()
        if now >= self._until_ns or (is_first and self._took_ns * LOOK_SHARE <= LOOK_EVERY_NS):
            self._until_ns = now + LOOK_EVERY_NS  # other threads don't look meanwhile
            before = _processor_ns()  # on a busy machine a look takes long, and costs no more
            self._through, self._peers = watches_files(), find_native()
            self._took_ns = _processor_ns() - before
            self._until_ns = now + max(LOOK_EVERY_NS, self._took_ns * LOOK_SHARE)
        return self._through, self._peers


_watch: Final = _Watch()
at_end: Final[list[Callable[[Run], None]]] = []
"""Called at the end of a run that notes leaks."""


@dataclass
class Leak:
    """One kind of I/O at one call site."""

    kind: str
    what: str
    detail: str
    code: str
    is_hole: bool
    seq: int = 0
    """The number of the last call that had begun: whatever follows may depend on what was read."""
    count: int = 1

    def say(self) -> str:
        """Describe the leak in one sentence without a full stop."""
        place = self.code or ("native code" if self.kind == NATIVE else "a library's own thread")
        return f"{place} {SAID[self.kind].format(detail=self.detail, what=self.what)}"


class Leaks:
    """The leaks of one run, at most LEAKS_MAX, one per call site. Thread-safe."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._found: dict[tuple[str, str], Leak] = {}
        self._lock = make_lock()
        self._seq = 0
        self._sees_watch = self._has_looked = False
        self._peers: set[str] = set()
        self._background: dict[str, dict[str, Any]] = {}

    def note_background(self, library: str) -> None:
        """Note, once for each lane, that a library reads the clock or random values in a thread of its own."""
        lane = current_lane(self._run.root_lane).path
        if lane in self._background or current_crossing(self._run.root_lane) is not None:
            return
        with self._lock:
            if len(self._background) < LANES_MAX:
                said = f"{library} reads the clock or random values in a thread of its own, where they are not recorded"
                self._background[lane] = {"lane": lane, "said": said, "seq": self._seq}

    def note_drawing(self, library: str) -> None:
        """Note, once for each lane, that a library writes to standard output in a thread of its own."""
        lane = current_lane(self._run.root_lane).path
        key = f"{lane} draws"
        with self._lock:
            if key not in self._background and len(self._background) < LANES_MAX:
                said = f"{library} draws on standard output in a thread of its own, whose pace is not recorded"
                self._background[key] = {"lane": lane, "said": said, "seq": self._seq, "stream": "stdout"}

    def look(self, seq: int) -> None:
        """Note that a call begins: its number, whether anything watches files, and connections of native code.

        In a server, a watcher may only be there to load changed code: then it makes no hole.
        """
        guard.guarded("open descriptors", self._look_at_descriptors)
        self._seq = seq

    def _look_at_descriptors(self) -> None:
        through, peers = _watch.find(is_first=not self._has_looked)
        self._has_looked = True
        if through and not self._sees_watch:
            self._sees_watch = True
            self.add("events", through, through, "", is_hole=not (serves() or IN_UNIT.get()))
        for peer in peers:
            if peer not in self._peers:
                self._peers.add(peer)
                self.add(NATIVE, "native code", peer, "", is_hole=True)

    @property
    def seq(self) -> int:
        """The number of the last call that has begun."""
        return self._seq

    def add(self, kind: str, what: str, detail: str, code: str, *, is_hole: bool, seq: int | None = None) -> None:
        """Note one leak, which began after call `seq` (default: the last one); `detail` is redacted here."""
        key = (kind, code or detail)
        with self._lock:
            known = self._found.get(key)
            if known is not None:
                known.count += 1
                return
            if len(self._found) >= LEAKS_MAX:
                self._run.count("leaks_dropped")
                return
            shown = self._run.redactor.text(strip_query(detail))[:DETAIL_CHARACTERS_MAX]
            leak = self._found[key] = Leak(kind, what, shown, code, is_hole, self._seq if seq is None else seq)
        if is_hole:
            self._run.hole(leak.say())

    def describe(self) -> list[dict[str, Any]]:
        """Describe the leaks for the manifest, in the order of their first appearance."""
        with self._lock:
            return [{**vars(leak), "said": leak.say()} for leak in self._found.values()]

    def for_manifest(self) -> dict[str, Any]:
        """Return the members of the manifest."""
        guard.guarded("open descriptors", self._look_at_descriptors)
        for look in at_end:
            guard.guarded("open connections", look, self._run)
        rows, background = self.describe(), list(self._background.values())
        return {**({"leaks": rows} if rows else {}), **({"background_reads": background} if background else {})}


def leaking_run() -> Run | None:
    """Return the run from which the running code's I/O leaks; None inside a call and in our own plumbing."""
    run = active_run()
    if run is None or run.leaks is None or quiet_state.depth:
        return None
    if current_crossing(run.root_lane) is not None or is_suppressed() or is_plumbing(run) or starting.is_now:
        return None
    return run


def note(kind: str, what: str, detail: str, *, is_hole: bool = True) -> bool:
    """Note I/O of the running code and return whether it is a leak; called by patches and audit listeners."""
    run = leaking_run()
    if run is None or run.leaks is None:
        return False
    frame = sys._getframe(1)
    if is_telemetry_stack(frame) or is_library_log(frame) or (kind == "process" and is_harmless_spawn(frame)):
        return False
    run.leaks.add(kind, what, detail, ids.find_caller(2), is_hole=is_hole)
    return True
