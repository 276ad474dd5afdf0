"""Per-thread marks of the threads that a replay's thread census counts."""

from __future__ import annotations

import threading
from typing import Final

from spanreplay.model.own_threads import make_lock


class _Counted(threading.local):
    gate: object | None = None
    """The gate whose `ThreadCensus.started` counted the calling thread's work. A thread may outlive its replay."""
    joins: object | None = None
    """The gate to tell when the thread ends; its census may count the thread from now on."""
    is_timed: bool = False
    """Whether the calling thread runs because time has passed, or because such a thread told it to.

    Such a thread (one that sleeps in a loop) doesn't react to anything, and may never stop.
    """


counted: Final = _Counted()


class TurnCondition(threading.Condition):
    """The condition of an order gate, on which threads wait for their turn; the agent never waits on it."""

    def __init__(self) -> None:
        super().__init__(make_lock())


def nothing() -> None:
    """No-op."""


SERVICE: Final = "_spanreplay_service"
"""Attribute of a thread that works on behalf of many; each piece of its work is counted separately."""
