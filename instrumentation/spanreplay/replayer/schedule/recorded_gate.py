"""The completion order of a recording, as its replay keeps it."""

from __future__ import annotations

from collections.abc import Collection

from spanreplay.model.call import Recording
from spanreplay.replayer.schedule.gate import OrderGate
from spanreplay.replayer.schedule.pace import Steps

__all__ = ["read_gate"]


def read_gate(recording: Recording, covered: Collection[int]) -> OrderGate:
    """The order of a recording; `covered` has the numbers of calls that lie inside served ones, as it grows."""
    if recording.is_imported:  # the order of its entries is not that of concurrent requests
        return OrderGate((), covered.__contains__)
    manifest = recording.root.manifest
    found = map(manifest.get, ("lane_ends", "timers"))
    lane_ends, timers = (each if isinstance(each, dict) else None for each in found)
    gate = OrderGate(recording.calls, covered.__contains__, lane_ends, timers, Steps.read(manifest))
    ends = [recording.root.end_ns, *(call.end_ns for call in recording.calls)]
    gate.lasted_s = max(0, max(ends) - recording.root.start_ns) / 1e9
    return gate
