"""Tools whose code a replay runs again: within the sandbox, its calls served and compared, and its result compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spanreplay.replayer.resolve.plan import RERUN

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord
    from spanreplay.replayer.resolve.directions import Direction
    from spanreplay.replayer.resolve.shared_state import SharedState
    from spanreplay.runtime.calls.open_call import Crossing

__all__ = ["pair", "runs_again"]


def runs_again(session: SharedState, crossing: Crossing, call: CallRecord, direction: Direction) -> bool:
    """Whether the plan runs the code of this recorded call again; the session then compares its result.

    A call without a function (a statement, a program) is served, whatever the selector says; so is a response that the
    plan sets.
    """
    if direction.action != RERUN or crossing.spec.body is None or direction.responses:
        return False
    pair(session, crossing, call)
    session.counts["rerun"] = session.counts.get("rerun", 0) + 1
    return True


def pair(session: SharedState, crossing: Crossing, call: CallRecord) -> None:
    """Note which recorded call a call stands for that runs now; when a body prints and passes things on is up to it."""
    crossing.paired = call
    if crossing.body_lane is not None:
        session.gate.complete(*call.clocks)
