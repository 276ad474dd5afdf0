"""Calls of a process's start that come in another order: no difference of a unit, if no code has changed.

Programs go through sets of objects, whose order depends on addresses: SQLAlchemy makes the indexes of a table so. A
unit's replay repeats the start of its process only for what the unit finds. Each call of the start is still answered
and compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spanreplay.replayer.divergence import Divergence
    from spanreplay.replayer.resolve.session import Session

__all__ = ["without_reordered"]

_MOVED: Final = "moved"


def without_reordered(session: Session, divergences: list[Divergence], code: Mapping[str, Any]) -> list[Divergence]:
    """Return the divergences; none, but their number in the counts, if all are calls that moved so in their lane."""
    if session.extent is None or session.plan.is_strict or code.get("code", {}).get("changed_files") != []:
        return divergences
    lanes = {call.number: call.lane for call in session.recording.calls if call.number < 0}
    if not divergences or not all(d.kind == _MOVED and lanes.get(d.call) == d.lane for d in divergences):
        return divergences
    session.counts["reordered"] = len(divergences)
    return []
