"""Lock acquisition order: threads pass a place in the recorded order."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from spanreplay.replayer.schedule.gate import OrderGate
from spanreplay.replayer.schedule.lock_order import RecordedLockOrder
from spanreplay.runtime.order.lock_order import RecordingLockOrder, read_lock_order


def make_gate(threads: int) -> OrderGate:
    """A gate with so many started threads."""
    gate = OrderGate([], lambda seq: False)
    for _ in range(threads):
        gate.census.started()
    return gate


def run_threads(gate: OrderGate, works: list[Any]) -> None:
    """Run each function in its own thread, to its end."""

    def run(work: Any) -> None:
        try:
            work()
        finally:
            gate.census.ended()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    with gate.census.waiting_elsewhere():
        for thread in threads:
            thread.join(timeout=600)
    assert not any(thread.is_alive() for thread in threads)


def test_s68_book_counts_only_where_lanes_take_over() -> None:
    """A place that one lane passes is not described; one that two lanes pass is, in order, and reads back."""
    book = RecordingLockOrder()
    book.pass_through("door", "main", lambda: None)
    book.is_shared = True
    for lane in ("a", "a", "b", "a"):
        assert book.pass_through("door", lane, lambda lane=lane: lane) == lane  # type: ignore[misc]
    book.pass_through("window", "a", lambda: None)
    assert read_lock_order(book.describe()) == {"door": [("a", 2), ("b", 1), ("a", 1)]}


@pytest.mark.parametrize("stated", [None, 3, {}, {"lanes": [], "places": {"door": [0, 1]}}, {"places": {}}])
def test_s68_a_manifest_that_cannot_be_read_orders_nothing(stated: Any) -> None:
    """A missing or damaged order lets everybody pass."""
    assert read_lock_order({"handovers": stated}) == {}


def test_s68_threads_pass_in_the_recorded_order() -> None:
    """A thread that comes early waits for those that passed before it."""
    order = [("b", 2), ("a", 1), ("c", 1), ("a", 2)]
    gate = make_gate(3)
    lock_order = RecordedLockOrder(gate, {"door": order})
    lock_order.is_shared = True
    passed: list[str] = []

    def work(lane: str, times: int) -> Any:
        return lambda: [lock_order.pass_through("door", lane, lambda: passed.append(lane)) for _ in range(times)]

    run_threads(gate, [work("a", 3), work("b", 2), work("c", 1)])
    assert passed == ["b", "b", "a", "c", "a", "a"]


def test_s68_an_order_that_does_not_come_holds_nobody_up() -> None:
    """A lane that never comes is waited for once; one that is not in the order passes when nothing else happens."""
    gate = make_gate(1)
    lock_order = RecordedLockOrder(gate, {"door": [("a", 1), ("never", 1), ("a", 3)]})
    lock_order.is_shared = True
    passed: list[str] = []

    def work() -> None:
        lock_order.pass_through("door", "stranger", lambda: passed.append("stranger"))
        for _ in range(4):
            lock_order.pass_through("door", "a", lambda: passed.append("a"))

    run_threads(gate, [work])
    assert passed == ["stranger", "a", "a", "a", "a"]


def test_s68_who_waited_in_vain_then_takes_nothing_from_the_others() -> None:
    """A worker that is free earlier than when recorded does not overtake another one, however long that one works."""
    gate = make_gate(2)
    lock_order = RecordedLockOrder(gate, {"door": [("a", 1), ("b", 2)]})
    lock_order.is_shared = True
    passed, stranger_waits = [], threading.Event()

    def early() -> None:
        lock_order.pass_through("door", "a", lambda: passed.append("a"))
        stranger_waits.set()
        lock_order.pass_through("door", "a", lambda: passed.append("a once more"))

    def late() -> None:
        stranger_waits.wait(10)
        for _ in range(2):
            end = time.process_time() + 0.7  # longer than the stall detector waits without progress
            while time.process_time() < end:
                pass
            lock_order.pass_through("door", "b", lambda: passed.append("b"))

    run_threads(gate, [early, late])
    assert passed == ["a", "b", "b", "a once more"]
