"""Threads that wait in a replay."""

from __future__ import annotations

import posix
import runpy
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from spanreplay.replayer.schedule import gate as order
from spanreplay.replayer.schedule import stall_detector, threads
from spanreplay.replayer.schedule.gate import OrderGate
from spanreplay.runtime.patches import Patches


def test_n2_wait_is_told_while_it_looks_whether_the_program_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notification is not lost although the notifier holds the lock for longer than a stall check takes."""
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
            assert not threading.Event().wait(0.1)  # ten checks
            condition.notify()
        thread.join(10)
        assert told == [True]
    finally:
        patches.undo()


def test_n2_wait_without_the_lock_raises_as_ever() -> None:
    """Waiting on a condition without its lock raises the usual error."""
    patches = Patches()
    threads.install(OrderGate([], lambda seq: False), patches)
    try:
        with pytest.raises(RuntimeError, match="un-acquired lock"):
            threading.Condition().wait()
    finally:
        patches.undo()


def test_n2_thread_that_was_told_is_at_work_before_it_wakes_up() -> None:
    """A notified thread can't wake up while the lock is held, and nothing may go out before it has."""
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
    """A call that waits for a pool thread can't complete, so the next result need not wait for it."""
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


def test_n2_daemon_counts_from_its_first_turn_on_and_the_agents_own_from_its_start(tmp_path: Path) -> None:
    """A library's helper counts from its first wait for a turn until it ends, and delays nothing before that."""
    gate, patches = OrderGate([], lambda seq: False), Patches()
    go, leave, is_here = threading.Event(), threading.Event(), threading.Event()
    file = tmp_path / "site-packages" / "library.py"
    file.parent.mkdir()
    file.write_text("start()")

    def helper() -> None:
        go.wait(10)
        gate.wait_turn(-1)
        is_here.set()
        while not leave.is_set():
            pass

    threads.install(gate, patches)
    try:
        own = threading.Thread(target=lambda: go.wait(10), daemon=True)
        own.start()
        own_counts = gate.census.size
        library = threading.Thread(target=helper, daemon=True)
        runpy.run_path(str(file), {"start": library.start})
        before = gate.census.size
        go.set()
        is_here.wait(10)
        own.join(10)
        during = gate.census.size
        leave.set()
        library.join(10)
        assert (own_counts, before, during, gate.census.size) == (2, 2, 2, 1)
    finally:
        patches.undo()


def test_n2_call_of_a_pool_that_a_daemon_asked_first_may_wait() -> None:
    """The pool's threads are then daemons; the call counts while it works, and not while it waits."""
    gate, patches, go = OrderGate([], lambda seq: False), Patches(), threading.Event()
    at_work, asked = [], threading.Event()

    def work() -> None:
        at_work.append(gate.census.working)
        asked.set()
        go.wait(60)

    def ask() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(work).result()

    threads.install(gate, patches)
    try:
        daemon = threading.Thread(target=ask, daemon=True)
        daemon.start()
        asked.wait(10)
        until = time.monotonic() + 10
        while gate.census.working != 1 and time.monotonic() < until:
            threading.Event().wait(0.01)
        while_waiting = gate.census.working
        go.set()
        daemon.join(10)
        assert (at_work[0] >= 2, while_waiting, gate.census.working) == (True, 1, 1)
    finally:
        patches.undo()


@pytest.mark.parametrize("is_daemon", [False, True])
def test_n2_thread_counts_until_its_lane_has_ended(tmp_path: Path, is_daemon: bool) -> None:
    """A thread's lane waits for its turn after the body ended: the thread counts until then, and not forever."""
    gate, lanes, patches = OrderGate([], lambda seq: False), Patches(), Patches()
    sizes: list[tuple[int, int]] = []

    def start(wrapped: Any, thread: Any, args: Any, kwargs: Any) -> Any:
        body = thread.run

        def run() -> None:
            body()
            before = gate.census.size
            gate.wait_turn(-1)  # as at the end of a lane
            sizes.append((before, gate.census.size))

        thread.run = run
        return wrapped(*args, **kwargs)

    file = tmp_path / "site-packages" / "library.py"
    file.parent.mkdir()
    file.write_text("start()")
    lanes.wrap(threading.Thread, "start", start)
    threads.install(gate, patches)
    try:
        thread = threading.Thread(target=lambda: None, daemon=is_daemon)
        runpy.run_path(str(file), {"start": thread.start})
        thread.join(10)
        assert sizes == [(1 if is_daemon else 2, 2)]
        assert gate.census.size == 1
    finally:
        patches.undo()
        lanes.undo()


def test_n2_thread_that_is_started_again_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first start may fail because no more threads are possible."""
    gate, patches, real = OrderGate([], lambda seq: False), Patches(), threading.Thread.start
    is_full = [True]

    def start(thread: threading.Thread) -> None:
        if is_full and is_full.pop():
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    threads.install(gate, patches)
    try:
        thread = threading.Thread(target=lambda: None)
        with pytest.raises(RuntimeError, match="can't start"):
            thread.start()
        assert gate.census.size == 1
        thread.start()
        thread.join(10)
        assert gate.census.size == 1
    finally:
        patches.undo()


def test_n2_thread_that_ends_while_it_is_looked_at_is_not_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of an ended thread can't be read any more, so the check skips it."""

    def read(descriptor: int, size: int) -> bytes:
        raise ProcessLookupError(descriptor)

    monkeypatch.setattr(posix, "read", read)
    assert not stall_detector._is_any_runnable(())


def test_n2_thread_of_an_earlier_replay_does_not_count_in_the_next() -> None:
    """A replay may leave threads behind that still wait for their turn or for something that never happens."""
    earlier, later = OrderGate([], lambda seq: False), OrderGate([], lambda seq: False)
    may_pass: list[bool] = []
    never: list[bool] = []
    is_started, item, before = threading.Barrier(3), threading.Condition(), Patches()

    def wait_for_turn() -> None:
        is_started.wait()
        earlier.wait_until(lambda: bool(may_pass), may_be_long=True)

    def wait_for_item() -> None:
        is_started.wait()
        with item:
            item.wait_for(lambda: bool(never), timeout=60)

    threads.install(earlier, before)
    left = [threading.Thread(target=wait, daemon=True) for wait in (wait_for_turn, wait_for_item)]
    for thread in left:
        thread.start()
    before.undo()
    is_started.wait()
    after = Patches()
    threads.install(later, after)
    seen = []
    try:
        with item:
            item.notify_all()  # it waits again, through the later replay's patches
        ends = time.monotonic() + 0.5  # ten checks of the other
        while time.monotonic() < ends:
            seen.append((later.census.working, later.census.size, later.census.idle))
            threading.Event().wait(0.01)
    finally:
        never.append(True)
        with item:
            item.notify_all()
        earlier.move(lambda: may_pass.append(True))
        for thread in left:
            thread.join(10)
        after.undo()
    assert {(working, size) for working, size, _ in seen} == {(1, 1)}
    assert not any(idle & {thread.native_id for thread in left} for _, _, idle in seen)
