"""The stall detector: how long a replay waits for threads that are doing something."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spanreplay.replayer.schedule import stall_detector
from spanreplay.replayer.schedule.gate import OrderGate
from spanreplay.replayer.schedule.stall_detector import Reaction
from spanreplay.replayer.schedule.step_clock import StepClock
from spanreplay.runtime.order.steps import watch
from support.in_process import MemoryProcessor, make_run


@contextmanager
def spinning() -> Iterator[int]:
    """Run a thread that computes all the time; yields its native id."""
    leave, ids = threading.Event(), []
    is_here = threading.Event()

    def spin() -> None:
        ids.append(threading.get_native_id())
        is_here.set()
        while not leave.is_set():
            sum(range(100))

    thread = threading.Thread(target=spin)
    thread.start()
    is_here.wait()
    try:
        yield ids[0]
    finally:
        leave.set()
        thread.join()


def cpu_ns(thread: int) -> int:
    """The CPU time of a thread, by its native id."""
    clocks = stall_detector._read_clocks()
    assert clocks is not None
    return clocks[str(thread)]


def all_threads() -> set[int]:
    """The native ids of all threads of this process; other tests may have left some."""
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def test_n2_looks_of_threads_that_wait_are_not_taken_for_work() -> None:
    """CPU time that waiting threads spend on their own checks does not delay a result."""
    with spinning() as thread:
        work, of_those_that_wait = stall_detector._Work(), stall_detector._Work()
        used_ms = of_those_that_wait.look(all_threads())
        while used_ms < 5:
            used_ms += work.look(all_threads() - {thread})
        assert of_those_that_wait.look(all_threads()) == 0


def test_n2_threads_that_compute_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next result does not go out before the results that computing threads may bring."""
    monkeypatch.setattr(stall_detector._spent, "cpu_ms", 0.0)  # other tests have spent some
    with spinning() as thread:
        reaction = Reaction(is_quick=True)
        looks = threading.Event()
        while reaction._used_ms <= stall_detector.REACTION_MS / 2:
            is_over = reaction.is_over(())
            # If this thread did not run for long, the other one has had all the time there is
            is_late = (time.monotonic() - reaction.since) * 1000 >= stall_detector.REACTION_LONG_MS
            assert not is_over or is_late or reaction._used_ms >= stall_detector.REACTION_CPU_MS
            computed_ns = cpu_ns(thread) + 3_000_000
            while cpu_ns(thread) < computed_ns:  # on a busy machine it may get no CPU for a while
                looks.wait(reaction.look_s)


def test_n2_thread_that_no_processor_took_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a thread may wait for a CPU all the time, and for the GIL whenever it is checked."""
    queued = {"1": 0}
    step_ns = 1_000_000

    def read_queued() -> dict[str, int]:
        queued["1"] += step_ns
        return dict(queued)

    monkeypatch.setattr(stall_detector, "_is_any_runnable", lambda _waiting: False)
    monkeypatch.setattr(stall_detector, "_read_clocks", lambda: {"1": 0})
    monkeypatch.setattr(stall_detector, "_read_queued", read_queued)
    reaction, looks = Reaction(others_s=60.0, is_quick=True), 0
    while looks < 20:
        before = queued["1"]
        assert not reaction.is_over(())
        looks += queued["1"] != before
    step_ns = 0
    while not reaction.is_over(()):
        pass


def test_n2_looks_at_threads_do_not_go_through_the_agents_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions that a replay patches look up every path, which would count as work."""

    def fail(*_: Any) -> Any:
        raise AssertionError("not for looks")

    for name in ("open", "read", "close", "listdir"):
        monkeypatch.setattr(os, name, fail)
    with spinning():
        is_any = stall_detector._is_any_runnable(())
    assert is_any


def run_idle(gate: OrderGate, look: Callable[[asyncio.AbstractEventLoop], None]) -> None:
    """Run an idle replay loop; `look` is called at each of its checks for completions, and stops it."""
    loop = asyncio.new_event_loop()

    class Clock(StepClock):
        def _go_on(self, timer: float | None) -> float | None:
            look(loop)
            return super()._go_on(timer)

    watched = watch(loop)
    assert watched is not None
    clock = Clock(loop, gate, watched, make_run(MemoryProcessor()))
    clock.attach()
    try:
        loop.run_forever()
    finally:
        clock.release()
        loop.close()


def test_n2_loop_that_looks_for_what_comes_is_idle_between_its_looks() -> None:
    """If checking counted as work, loops in several threads would take each other's checks for work."""
    gate = OrderGate([], lambda seq: False)
    seen: list[bool] = []

    def look(loop: asyncio.AbstractEventLoop) -> None:
        seen.append(threading.get_native_id() in gate.census.idle)
        if len(seen) == 5:
            loop.call_soon_threadsafe(loop.stop)

    run_idle(gate, look)
    assert seen == [True] * 5
    assert not gate.census.idle


def test_n2_loop_that_looks_for_what_comes_goes_on_with_what_a_signal_made_ready() -> None:
    """A signal handler runs in the loop's own thread, and wakes nobody up."""
    seen: list[int] = []

    def look(loop: asyncio.AbstractEventLoop) -> None:
        seen.append(len(seen))
        if len(seen) == 2:
            before = signal.signal(signal.SIGUSR1, lambda *_: loop.call_soon(loop.stop))
            try:
                signal.raise_signal(signal.SIGUSR1)
            finally:
                signal.signal(signal.SIGUSR1, before)
        elif len(seen) > 10:
            loop.call_soon_threadsafe(loop.stop)

    run_idle(OrderGate([], lambda seq: False), look)
    assert seen == [0, 1]
