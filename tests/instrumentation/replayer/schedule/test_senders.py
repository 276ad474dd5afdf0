"""Results of a pool's worker process go out in order, while the worker continues."""

from __future__ import annotations

import copy
import threading
from typing import Any

from spanreplay.replayer.schedule.gate import OrderGate
from spanreplay.replayer.schedule.senders import finish_sending, send_in_turn
from spanreplay.replayer.schedule.thread_census import ThreadCensus


class _Gate(OrderGate):
    """A gate that gives no turn until the test opens it."""

    def __init__(self) -> None:
        super().__init__((), lambda _: False)
        self.opens = threading.Event()

    def wait_turn(self, clock: int, others_s: float = 0.0) -> None:
        """Wait until the test opens the gate."""
        assert self.opens.wait(30)


def test_s68_worker_goes_on_before_it_is_the_turn_of_its_result() -> None:
    """A result, as it was when the work ended, waits for its turn in its own thread, and is sent before the exit."""
    gate, sent, result = _Gate(), list[Any](), ["as it was"]
    gate.census = ThreadCensus(threading.Condition(), lambda: None, busy=2)

    def send_back(queue: Any, work_id: int, result: Any = None) -> None:
        sent.append((work_id, copy.deepcopy(result)))

    send_in_turn(gate, "main/px:work#1", send_back, (None, 1), {"result": result})
    result.append("changed later")
    send_in_turn(gate, "main/px:work#2", send_back, (None, 2), {"result": None})
    assert sent == []
    assert gate.census.working == 0
    gate.opens.set()
    finish_sending()
    assert sent == [(1, ["as it was"]), (2, None)]
