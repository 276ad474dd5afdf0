"""What a replay does to threads that wait."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from spanreplay._patch import Patches
from spanreplay.replay import order, threads
from spanreplay.replay.order import OrderGate


def test_n2_wait_is_told_while_it_looks_whether_the_program_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever tells it holds the lock for longer than a look takes: nothing that was told is lost."""
    monkeypatch.setattr(order, "STALL_MS", 10)
    condition, is_waiting, told = threading.Condition(), threading.Event(), []

    def wait() -> None:
        with condition:
            is_waiting.set()
            told.append(condition.wait())

    patches = Patches()
    threads.install(OrderGate([], lambda seq: False), patches)
    try:
        thread = threading.Thread(target=wait)
        thread.start()
        is_waiting.wait()
        with condition:
            assert not threading.Event().wait(0.1)  # ten looks
            condition.notify()
        thread.join(10)
        assert told == [True]
    finally:
        patches.undo()


def test_n2_wait_without_the_lock_raises_as_ever() -> None:
    """A condition that is not held says so."""
    patches = Patches()
    threads.install(OrderGate([], lambda seq: False), patches)
    try:
        with pytest.raises(RuntimeError, match="un-acquired lock"):
            threading.Condition().wait()
    finally:
        patches.undo()


def test_n2_thread_that_was_told_is_at_work_before_it_wakes_up() -> None:
    """It can't wake up while the lock is held, and nothing may go out before it has."""
    condition, is_waiting = threading.Condition(), threading.Event()
    gate, patches = OrderGate([], lambda seq: False), Patches()

    def wait() -> None:
        with condition:
            is_waiting.set()
            condition.wait()

    threads.install(gate, patches)
    try:
        thread = threading.Thread(target=wait)
        thread.start()
        is_waiting.wait()
        with condition:
            assert gate.working_threads == 1
            condition.notify()
            assert gate.working_threads == 2
        thread.join(10)
        assert gate.working_threads == 1
    finally:
        patches.undo()


def test_n2_calls_that_a_pool_has_no_thread_for_are_not_at_work() -> None:
    """What waits for a thread of a pool can't bring anything: the next result need not wait for it."""
    gate, patches, go = OrderGate([], lambda seq: False), Patches(), threading.Event()
    threads.install(gate, patches)
    try:
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(go.wait, 10) for _ in range(6)]
            assert len(futures) == 6
            most = gate.working_threads  # the main thread, and those that do not wait yet
            futures[-1].cancel()
            go.set()
            wait(futures)
            assert most <= 3
        assert gate.working_threads == 1
    finally:
        patches.undo()
