"""Waits that another limit would end otherwise than when recorded: judged where the code has changed.

A wait that ended after two seconds would expire at a limit of one. One that expired would last until the work of the
thread or job that it was for is over, if its new limit reaches so far; nobody knows what else an event stands for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from spanreplay.runtime.order.wait_ends import AT_ONCE
from spanreplay.runtime.order.waited import Wait, describe_change, read_waited

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord, Recording
    from spanreplay.runtime.order.order import Order

__all__ = ["ChangedLimits"]

_LANE: Final = "|"


class ChangedLimits:
    """Compares the limits of a program's waits with those of its recording."""

    def __init__(self, recording: Recording, gate: Order) -> None:
        self._calls = recording.calls
        self._gate = gate
        self._waited = read_waited(recording.root.manifest)

    def check(self, name: str, limit: Any, lanes: Iterable[str] = ()) -> None:
        """Note a recorded wait that would end otherwise now; `lanes` are those whose end it is for, if they are known.

        Raises: nothing that a program's arguments can cause.
        """
        wait = self._waited.get(name)
        if wait is None or limit == AT_ONCE or not isinstance(limit, (int, float, type(None))):
            return
        why = describe_change(wait.seconds, limit, has_expired=wait.has_expired)
        call = self._find_call(wait, name.partition(_LANE)[0], limit, tuple(lanes)) if why else None
        if call is not None:
            self._gate.note_late(call.end_seq, why)

    def check_timer(self, name: str, seconds: float) -> None:
        """Note a recorded timer that has fired, and would fire after a call now that was under way in its task."""
        wait = self._waited.get(name)
        why = "" if wait is None else describe_change(wait.seconds, seconds, has_expired=True)
        if wait is None or not why:
            return
        lanes = (name.partition(_LANE)[0],)
        cut = [call for call in self._calls if call.seq < wait.clock < call.end_seq and _is_within(call.lane, lanes)]
        first = min(cut, key=lambda call: call.end_ns, default=None)
        if first is not None and (first.end_ns - wait.expired_ns) / 1e9 < seconds - wait.seconds:
            self._gate.note_late(first.end_seq, why)

    def _find_call(self, wait: Wait, waiting: str, limit: Any, lanes: tuple[str, ...]) -> CallRecord | None:
        """Return the call that a wait was for; None if it would expire all the same, or nobody knows."""
        if wait.has_expired:
            return self._find_awaited(wait, limit, lanes)
        others = [call for call in self._calls if call.lane != waiting and 0 <= call.end_seq <= wait.clock]
        return max(others, key=lambda call: call.end_seq, default=None)

    def _find_awaited(self, wait: Wait, limit: Any, lanes: tuple[str, ...]) -> CallRecord | None:
        """Return the last call of these lanes if it was under way when the wait expired, and ended within the limit."""
        work = [call for call in self._calls if _is_within(call.lane, lanes)]
        last = max(work, key=lambda call: call.end_ns, default=None)
        if last is None or not last.seq < wait.clock < last.end_seq:
            return None
        more_s = math.inf if limit is None else limit - wait.seconds
        return last if (last.end_ns - wait.expired_ns) / 1e9 < more_s else None


def _is_within(lane: str, lanes: tuple[str, ...]) -> bool:
    return any(lane == each or lane.startswith(each + "/") for each in lanes)
