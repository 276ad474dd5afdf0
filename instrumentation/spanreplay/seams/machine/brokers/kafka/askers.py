"""Whose use of a client of Kafka is a call: a framework's as well, for what it sends can't be seen below it."""

from __future__ import annotations

import sys
from typing import Final
from weakref import WeakSet

from spanreplay.runtime.calls.open_call import is_plumbing, is_suppressed
from spanreplay.runtime.lanes import current_crossing
from spanreplay.runtime.process.outside_io import is_telemetry_stack
from spanreplay.runtime.run import Run, active_run
from spanreplay.seams.machine import asked

_noted: Final[WeakSet[Run]] = WeakSet()


def asking_run(clients: frozenset[str]) -> Run | None:
    """Return the run that a use of a client belongs to; `clients` are the distributions of the clients themselves."""
    return asked.asking_run(clients, is_unseen_below=True)


def note_unseen() -> None:
    """Note, once for each run, that a client in native code works for a server or worker: no call has what it does."""
    run = active_run()
    if run is None or run in _noted or not run.resolver.connects:
        return
    if is_suppressed() or current_crossing(run.root_lane) is not None or not is_plumbing(run):
        return
    if not is_telemetry_stack(sys._getframe(1)):
        _noted.add(run)
        run.hole("a server or worker used a client of Kafka in native code for itself: that is not recorded")
