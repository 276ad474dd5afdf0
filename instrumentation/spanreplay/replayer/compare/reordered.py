"""Calls that come in another order, or would end at another time: differences if the code has changed.

In the start of a process another order is none of a unit, if no code has changed. Programs go through sets of objects,
whose order depends on addresses: SQLAlchemy makes the indexes of a table so. A unit's replay repeats the start of its
process only for what the unit finds. Each call of the start is still answered and compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.lane_names import is_earlier, name_number
from spanreplay.model.levels import level_of_recording
from spanreplay.replayer.divergence import describe_stall

if TYPE_CHECKING:
    from spanreplay.replayer.divergence import Divergence
    from spanreplay.replayer.resolve.session import Session

__all__ = ["judge_order"]

_MOVED: Final = "moved"


def judge_order(
    session: Session, divergences: list[Divergence], code: Mapping[str, Any], *, is_block: bool
) -> list[Divergence]:
    """Return the divergences without those of order that are none; if there are no others, those that are.

    `code` is the verdict's part about the code; of a block in a program it does not tell everything.
    """
    is_same = _is_same_code(code) and not (is_block and session.extent is None)
    if is_same:
        return _without_reordered(session, divergences)
    found = divergences or _find_order(session)
    return found or (_find_late(session) if code.get("code", {}).get("changed_files") else [])


def _find_late(session: Session) -> list[Divergence]:
    """Return the calls that ended as recorded, though a limit that the program sets would not let them now."""
    late = session.gate.late
    calls = {clock: call for call in session.recording.calls if late for clock in (*call.clocks, call.end_seq)}
    found = {calls[clock].number: (calls[clock], why) for clock, why in reversed(late) if clock in calls}
    return [
        replace(
            describe_stall(call, f"order stall at {name_number(number)} ({call.boundary}, lane {call.lane}): {why}"),
            code=call.code,
        )
        for number, (call, why) in sorted(found.items())
        if number > 0
    ]


def _is_same_code(code: Mapping[str, Any]) -> bool:
    """Whether a verdict's part about the code says that none has changed."""
    return bool(code.get("code", {}).get("changed_files") == [])


def _without_reordered(session: Session, divergences: list[Divergence]) -> list[Divergence]:
    """Return the divergences; none, but their number in the counts, if all are calls that moved within their lane.

    They are calls of the start of a unit's process, or of a recording without the order of tasks and threads.
    """
    recording = session.recording
    is_open = "waits of threads" not in level_of_recording(recording.root)
    lanes = {call.number: call.lane for call in recording.calls if is_open or call.number < 0}
    is_moved = all(d.kind == _MOVED and lanes.get(d.call) == d.lane for d in divergences)
    if not divergences or not is_moved or not (is_open or session.extent is not None):
        return divergences
    session.counts["reordered"] = len(divergences)
    return []


def _find_order(session: Session) -> list[Divergence]:
    """Return the calls that came in another order, though each is as recorded; asked where code may have changed.

    The order of an imported run's calls is not known.
    """
    if session.recording.is_imported or session.continuation is not None:
        return []
    return [each for each in session.findings.reordered if each.call > 0 and not is_earlier(each.lane)]
