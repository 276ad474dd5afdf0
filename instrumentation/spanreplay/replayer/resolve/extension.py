"""Turns a replay of a process's start into the replay of one of its units, in a fork of that process.

The session stays the same object, because everything that was installed refers to it. The parts that come from its
recording are replaced with those of the longer recording, which begins with the same calls; the findings stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spanreplay.model.own_threads import make_lock
from spanreplay.replayer.resolve.extent import Extent

if TYPE_CHECKING:
    from spanreplay.replayer.resolve.session import Session
    from spanreplay.runtime.run import Run

__all__ = ["extend"]

_OF_RECORDING: Final = (
    *("recording", "completeness", "tampering", "index", "relocation", "directions", "hidden", "recorded_env"),
    *("ended_workers", "_repeats"),
)
"""The attributes of a session that depend on its recording alone."""


def extend(session: Session, longer: Session, run: Run, clock: int) -> None:
    """Continue `session`, which stands at this clock, with the recording of `longer`, which was made for it."""
    longer.index.used |= session.index.used
    longer.index.covered |= session.index.covered
    longer.hidden.withheld += session.hidden.withheld
    longer.hidden.unreadable.update(session.hidden.unreadable)
    longer.recorded_env.follow(session.recorded_env, run.redactor)
    session.findings.follow(longer.recording, longer.index)
    for name in _OF_RECORDING:
        setattr(session, name, getattr(longer, name))
    session._lock = make_lock()
    session.is_forked = False
    session.gate.extend(longer.gate, clock)
    if longer.extent is not None:
        warm_up = longer.extent.warm_up
        if warm_up is not None:
            warm_up.follow(session)
        lost, background = longer.extent.is_start_lost, longer.extent.background
        in_flight = longer.extent.in_flight
        session.extent = Extent(session, in_flight, is_start_lost=lost, warm_up=warm_up, background=background)
        session.extent.note_started()
