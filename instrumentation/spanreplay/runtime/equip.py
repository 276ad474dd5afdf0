"""What a run asks while it is recorded; the session of a replay has an `equip` of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from spanreplay.runtime.calls.live_resolver import Counting, LiveResolver
from spanreplay.runtime.order.lock_order import LockOrder, RecordingLockOrder
from spanreplay.runtime.order.noted_order import Clocked, NotedOrder

if TYPE_CHECKING:
    from spanreplay.runtime.answers import Resolver
    from spanreplay.runtime.order.run_order import RunOrder


class Recorded(Clocked, Counting, Protocol):
    """A run, as far as both are concerned."""


def equip(run: Recorded) -> tuple[LockOrder, RunOrder, Resolver]:
    """Where threads of the run meet, where they go on, and what becomes of its calls."""
    return RecordingLockOrder(), NotedOrder(run), LiveResolver(run)
