"""Detects a replay that ended at a hole of its recording: an effect outside every boundary, which the replay denies.

The recorded run had the same effect in the same place, so the program has not changed; the recording ends there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from spanreplay.replayer.sandbox.dropped import list_dropped

if TYPE_CHECKING:
    from spanreplay.replayer.divergence import Divergence
    from spanreplay.replayer.resolve.session import Session

__all__ = ["excuse", "find_doubt", "has_ended_at_a_hole", "stop_at_hole"]

_BLOCKED: Final = "effect_blocked"
_STALL: Final = "order_stall"
_SENT: Final = frozenset({"arguments.bytes", "arguments.data"})
_BY_LIBRARY: Final = '"by":"library"'
_SOCKETS: Final = frozenset({"socket", "connection"})
_EFFECTS: Final = frozenset({*_SOCKETS, "process", "native"})
"""Kinds of leaks that every replay denies. Reads are denied only on request: those are divergences."""


def has_ended_at_a_hole(session: Session) -> bool:
    """Whether effects were denied, all of them holes of the recording, and nothing else differed but what followed.

    Also True if the recording lacks what a background task passed to the unit.
    """
    if session.extent is not None and session.extent.background.doubt:
        return True
    holes = [row for row in _list_rows(session, "leaks") if row.get("is_hole") and row.get("kind") in _EFFECTS]
    # Stalls wait for what ended there; what is downstream is what a program has made of the denial, which it caught
    found = [each for each in session.divergences if each.kind != _STALL and not each.is_downstream]
    if not holes or not (found or session.sockets_denied):
        return False
    if session.sockets_denied and not any(row.get("kind") in _SOCKETS for row in holes):
        return False
    places = {row.get("code") for row in holes}
    return all(each.kind == _BLOCKED and each.code in places for each in found)


def _list_rows(session: Session, member: str) -> list[dict[str, Any]]:
    rows = session.recording.root.manifest.get(member)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def find_doubt(session: Session, divergences: Sequence[Divergence], *, has_changed: bool) -> str:
    """Return the unrecorded read after which everything differs that does; '' if the program may be the cause.

    It may be if anything else has changed since the recording (`has_changed`, the plan, a cause that was found), or if
    something differs before that read.
    """
    plan, found = session.plan, [each for each in divergences if not each.is_downstream]
    if has_changed or not found or plan.lets_go_live or plan.patches:
        return ""
    if any(each.causes or each.kind == _BLOCKED for each in found):  # a read that is denied on request is the cause
        return ""
    native = session.findings.native
    if all(each.seq in native for each in found):
        names = ", ".join(sorted({native[each.seq] for each in found}))
        return f"native code of {names} may have chosen what differs, which is not recorded; nothing else has changed"
    if all(_differs_in_sent_bytes(session, each) for each in found):
        return "what a library sent may hold random values of its own, which are not recorded; nothing else has changed"
    numbered = {call.number: call.seq for call in session.recording.calls}
    first = min((numbered[each.call] for each in found if each.call in numbered), default=0)
    lanes = {each.lane for each in found}
    for row in (*_list_rows(session, "leaks"), *_list_rows(session, "background_reads")):
        seq = row.get("seq")
        if row.get("stream") == "stdout":
            may_reach = all(each.boundary == "process:stdout" for each in found)
        else:
            may_reach = {row["lane"]} == lanes if "lane" in row else _goes_on_without(session, row)
        if may_reach and isinstance(seq, int) and (not first or seq < first):
            return f"{row.get('said')}; only what follows differs, and nothing else has changed"
    return ""


def _differs_in_sent_bytes(session: Session, found: Divergence) -> bool:
    """Whether a call is the recorded one except for the bytes that a library sent through a connection."""
    paths = {each.path for each in found.diff}
    if not found.boundary.startswith("tool:socket.") or not paths or not paths <= _SENT:
        return False
    return any(call.number == found.call and _BY_LIBRARY in call.request for call in session.recording.calls)


def _goes_on_without(session: Session, row: dict[str, Any]) -> bool:
    """Whether a program may go on after what a row describes: it was not denied, or only a thread of it ended there.

    A library's datagrams are dropped, and it gets no answer.
    """
    if row.get("kind") in _SOCKETS:
        return bool(row.get("is_hole") and (session.sockets_denied or list_dropped(session)))
    return row.get("kind") not in _EFFECTS


def stop_at_hole(session: Session) -> None:
    """Stop comparing after such a hole: missing calls, output and files are not differences."""
    if has_ended_at_a_hole(session):
        session.has_reached_frontier = session.is_stopped = True


def excuse(session: Session) -> None:
    """Blame the recording, not the program, for a difference that follows gaps in the unit's process recording."""
    if session.extent is not None:
        session.stopped = session.stopped or session.extent.background.doubt
