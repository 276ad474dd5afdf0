"""Equips a run that is being recorded; the session of a replay has its own `equip`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from spanreplay.model import config
from spanreplay.runtime.calls.live_resolver import Counting, LiveResolver
from spanreplay.runtime.order.lock_order import LockOrder, RecordingLockOrder
from spanreplay.runtime.order.noted_order import Clocked, NotedOrder

if TYPE_CHECKING:
    from spanreplay.runtime.answers import Resolver
    from spanreplay.runtime.order.run_order import RunOrder


class Recorded(Clocked, Counting, Protocol):
    """The part of a run that its order and its resolver need."""


def equip(run: Recorded) -> tuple[LockOrder, RunOrder, Resolver]:
    """The lock acquisition order, the order of waits and ends, and the resolver of a run that is being recorded."""
    return RecordingLockOrder(), NotedOrder(run), _make_resolver(run)


def _make_resolver(run: Recorded) -> Resolver:
    if not config.read_setting("SPANREPLAY_REUSE"):
        return LiveResolver(run)
    from spanreplay.runtime.calls.reusing_resolver import ReusingResolver, read_reuse

    reuse = read_reuse()
    return LiveResolver(run) if reuse is None else ReusingResolver(run, reuse)
