"""Detects a replay that ended at a hole of its recording: an effect outside every boundary, which the replay denies.

The recorded run had the same effect in the same place, so the program has not changed; the recording ends there.
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
"""Kinds of leaks that every replay denies. Reads are denied only on request: those are divergences."""


def has_ended_at_a_hole(session: Session) -> bool:
    """Whether effects were denied, all of them holes of the recording, and nothing else differed until the end.

    Also True if the recording lacks what a background task passed to the unit.
    """
    if session.extent is not None and session.extent.background.doubt:
        return True
    leaks = session.recording.root.manifest.get("leaks")
    rows = leaks if isinstance(leaks, list) else []
    holes = [row for row in rows if isinstance(row, dict) and row.get("is_hole") and row.get("kind") in _EFFECTS]
    found = [each for each in session.divergences if each.kind != _STALL]  # stalls wait for what ended there
    if not holes or not (found or session.sockets_denied):
        return False
    if session.sockets_denied and not any(row.get("kind") == _SOCKET for row in holes):
        return False
    places = {row.get("code") for row in holes}
    return all(each.kind == _BLOCKED and each.code in places for each in found)


def stop_at_hole(session: Session) -> None:
    """Stop comparing after such a hole: missing calls, output and files are not differences."""
    if has_ended_at_a_hole(session):
        session.has_reached_frontier = session.is_stopped = True


def excuse(session: Session) -> None:
    """Blame the recording, not the program, for a difference that follows gaps in the unit's process recording."""
    if session.extent is not None:
        session.stopped = session.stopped or session.extent.background.doubt
