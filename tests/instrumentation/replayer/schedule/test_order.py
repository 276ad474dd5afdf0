"""Results are delivered in the recorded order under any schedule, without waiting for a clock."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import spanreplay
from spanreplay.model.call import CallRecord
from spanreplay.replayer.schedule.gate import OrderGate
from spanreplay.replayer.schedule.thread_census import ThreadCensus
from spanreplay.runtime.order.counted import TurnCondition, nothing
from support.in_process import recorded, replayed
from support.programs import UNIT_S, World, build, random_program, run_instantly

PROGRAMS = int(os.environ.get("SPANREPLAY_TEST_PROGRAMS", "60"))


def made(seq: int, end_seq: int, **fields: Any) -> CallRecord:
    """A finished call."""
    values: dict[str, Any] = {"run_id": "0" * 32, "kind": "tool", "name": "t", "lane": "main", "index": seq}
    return CallRecord(seq=seq, end_seq=end_seq, key="", keyspec="", request="", outcome="ok", **{**values, **fields})


def test_a_forked_process_can_count_whatever_another_thread_did() -> None:
    """The thread that holds the condition at the fork doesn't exist in the child and can't release it."""
    condition = TurnCondition()
    census, is_held, may_go = ThreadCensus(condition, nothing), threading.Event(), threading.Event()

    def hold() -> None:
        with condition:
            is_held.set()
            may_go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        census.started()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    may_go.set()
    thread.join()
    assert status == 0


def test_gate_gives_turns_in_recorded_order() -> None:
    """A completion has its turn when all earlier ones have gone out."""
    gate = OrderGate([made(1, 5), made(2, 4)], lambda seq: False)
    assert gate.is_turn(4)
    assert not gate.is_turn(5)
    gate.complete(4)
    assert gate.is_turn(5)


def test_gate_passes_over_covered_calls() -> None:
    """Calls inside a served call are not waited for."""
    gate = OrderGate([made(1, 5), made(2, 4)], {2}.__contains__)
    assert gate.is_turn(5)


def test_gate_opened_lets_everything_go() -> None:
    """After the gate was opened, because the replay no longer matches, nothing waits any more."""
    gate = OrderGate([made(1, 5), made(2, 4)], lambda seq: False)
    gate.open()
    assert gate.is_turn(5)


def test_gate_orders_the_parts_of_streams() -> None:
    """Chunks of two streams arrive in the recorded order."""
    gate = OrderGate([made(1, 9, clocks=(3, 6)), made(2, 10, clocks=(4, 5))], lambda seq: False)
    order = []
    waiting = {3, 4, 5, 6, 9, 10}
    while waiting:
        (turn,) = [c for c in waiting if gate.is_turn(c)]
        order.append(turn)
        waiting.remove(turn)
        gate.complete(turn)
    assert order == [3, 4, 5, 6, 9, 10]


def test_gate_skips_a_completion_that_never_comes() -> None:
    """A call that a changed program does not make delays its successors only briefly."""
    gate = OrderGate([made(1, 5), made(2, 4)], lambda seq: False)
    gate.census.started()
    waiter = threading.Thread(target=gate.wait_turn, args=(5,))
    waiter.start()
    waiter.join(30)
    assert not waiter.is_alive()
    assert gate.skipped == [4]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_n2_random_program_observes_the_same_under_another_schedule(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random program of gathers, races and timeouts sees the same answers in the same order; no body runs."""
    program = [*random_program(random.Random(seed)), ("ask", 0.5)]
    world = World(random.Random(seed))
    recording = recorded(lambda: run_instantly(build(program, world), monkeypatch))
    again = World(random.Random(seed + 1))
    outcome = replayed(build(program, again), recording)
    assert outcome.error is None
    assert again.observed == world.observed
    assert again.bodies == 0
    assert outcome.kinds() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_n2_random_program_on_a_slow_processor_observes_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that came while the program was still reacting to another comes in the same loop iteration again."""
    program = [*random_program(random.Random(seed)), ("ask", 0.5)]
    world = World(random.Random(seed))
    turns = random.Random(f"turns {seed}")
    share = turns.choice([0.01, 0.05, 0.2, 0.6])
    recording = recorded(
        lambda: run_instantly(build(program, world), monkeypatch, lambda: turns.expovariate(1) * share * UNIT_S)
    )
    again = World(random.Random(seed + 1))
    outcome = replayed(build(program, again), recording)
    assert outcome.error is None
    assert again.observed == world.observed
    assert again.bodies == 0
    assert outcome.kinds() == []


def test_n2_calls_completed_in_one_turn_of_the_loop_stay_together() -> None:
    """A program that waits for the first of two calls that completed in one loop iteration sees both again."""

    async def main() -> list[str]:
        is_ready = asyncio.Event()

        @spanreplay.boundary("tool", name="wait")
        async def wait(number: int) -> str:
            await is_ready.wait()
            return f"answer {number}"

        tasks = [asyncio.create_task(wait(number)) for number in range(2)]
        asyncio.get_running_loop().call_later(0.01, is_ready.set)
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return sorted(task.result() for task in done)

    seen: list[list[str]] = []

    async def note() -> None:
        seen.append(await main())

    recording = recorded(note)
    outcome = replayed(main, recording)
    assert seen == [["answer 0", "answer 1"]]
    assert outcome.result == seen[0]


def test_n2_timeout_of_an_hour_replays_at_once() -> None:
    """A call that outlived its timeout does so again, without waiting for a clock."""

    @spanreplay.boundary("tool", name="slow")
    async def slow() -> str:
        await asyncio.sleep(seconds)
        return "late"

    async def main() -> str:
        try:
            return await asyncio.wait_for(slow(), seconds / 2)
        except asyncio.TimeoutError:
            return "timeout"

    seconds = 0.05
    recording = recorded(main)
    seconds = 3600.0
    call = recording.calls[0]
    hour = dataclasses.replace(call, end_ns=call.start_ns + 1_800_000_000_000)
    outcome = replayed(main, dataclasses.replace(recording, calls=(hour,)))
    assert outcome.result == "timeout"
    assert outcome.kinds() == []


def test_n2_threads_get_their_results_in_order() -> None:
    """Eight pool calls that finished in another order than they were made finish in that order again."""
    release = [threading.Event() for _ in range(8)]
    order = [3, 1, 7, 0, 2, 6, 5, 4]
    is_recording = True

    @spanreplay.boundary("tool", name="wait")
    def wait(number: int) -> int:
        assert release[number].wait(30)
        return number

    def main() -> list[int]:
        finished: list[int] = []
        is_done = threading.Semaphore(0)

        def note(future: Any) -> None:
            finished.append(future.result())
            is_done.release()

        with ThreadPoolExecutor(8) as pool:
            for number in range(8):
                pool.submit(wait, number).add_done_callback(note)
            for number in order if is_recording else ():
                release[number].set()
                assert is_done.acquire(timeout=30)
            for _ in () if is_recording else order:
                assert is_done.acquire(timeout=30)
        return finished

    seen: list[list[int]] = []
    recording = recorded(lambda: seen.append(main()))
    is_recording = False
    outcome = replayed(main, recording)
    assert seen == [order]
    assert outcome.error is None
    assert outcome.result == order
