"""Threads that count in a replay."""

from __future__ import annotations

import threading
from typing import Final

from spanreplay.model.own_threads import make_lock


class _Counted(threading.local):
    gate: object | None = None
    """The gate whose `ThreadCensus.started` announced what the calling thread does. A thread may outlive its replay."""
    joins: object | None = None
    """The gate that will be told when the thread ends, and whose census may count it from now on."""


counted: Final = _Counted()


class TurnCondition(threading.Condition):
    """The condition of an order gate, on which threads wait for their turn: no wait of the agent's."""

    def __init__(self) -> None:
        super().__init__(make_lock())


def nothing() -> None:
    """For whom there is nothing to do."""


SERVICE: Final = "_spanreplay_service"
"""Attribute of a thread that works for many; what it does is counted piece by piece."""
