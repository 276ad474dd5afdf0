"""Whether a replay ended at a hole that its recording names: an effect outside of every boundary, denied now.

The recorded run did the same at the same place, so the program has not changed: the recording has no more to give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spanreplay.replayer.resolve.session import Session

__all__ = ["excuse", "has_ended_at_a_hole", "stop_at_hole"]

_BLOCKED: Final = "effect_blocked"
_STALL: Final = "order_stall"
_SOCKET: Final = "socket"
_EFFECTS: Final = frozenset({_SOCKET, "process", "native"})
"""Kinds of leaks that every replay denies. Reads it denies only where it was asked to: those are divergences."""


def has_ended_at_a_hole(session: Session) -> bool:
    """Whether effects were denied, all of them holes of the recording, and nothing else differed until the end.

    Or whether what a task beside a unit gives to it is not in the recording.
    """
    if session.extent is not None and session.extent.background.doubt:
        return True
    leaks = session.recording.root.manifest.get("leaks")
    rows = leaks if isinstance(leaks, list) else []
    holes = [row for row in rows if isinstance(row, dict) and row.get("is_hole") and row.get("kind") in _EFFECTS]
    found = [each for each in session.divergences if each.kind != _STALL]  # what waits for who ended there, in vain
    if not holes or not (found or session.sockets_denied):
        return False
    if session.sockets_denied and not any(row.get("kind") == _SOCKET for row in holes):
        return False
    places = {row.get("code") for row in holes}
    return all(each.kind == _BLOCKED and each.code in places for each in found)


def stop_at_hole(session: Session) -> None:
    """Compare nothing behind such a hole: what the program did not do any more, printed or left behind."""
    if has_ended_at_a_hole(session):
        session.has_reached_frontier = session.is_stopped = True


def excuse(session: Session) -> None:
    """A difference behind what the recording of a unit's process does not tell is none of the program's."""
    if session.extent is not None:
        session.stopped = session.stopped or session.extent.background.doubt
