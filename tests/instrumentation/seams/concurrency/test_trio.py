"""Trio and anyio: lanes named by where work starts, results in the recorded order, deadlines without waiting."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
import anyio._backends._asyncio as on_asyncio
import anyio._backends._trio as on_trio
import pytest
import trio
import trio.testing
from trio._core import _run as core

import spanreplay
from spanreplay.runtime.lanes import current_lane
from spanreplay.runtime.run import active_run
from spanreplay.seams.concurrency import anyio as _anyio
from spanreplay.seams.concurrency import trio as _trio
from support.in_process import MemoryProcessor, Seams, inside, make_run, recorded, replayed
from support.programs import World
from support.structured_programs import FLAVOURS, Program, random_steps, run_flavour

PROGRAMS = int(os.environ.get("SPANREPLAY_TEST_PROGRAMS", "60"))
SEAMS: Seams = ((_trio.install, trio), (_anyio.install, on_asyncio), (_anyio.install, on_trio))
UNIT_S = 1.0


class SlowProcessor(trio.abc.Instrument):
    """Advances the clock in each loop iteration and step, as on a busy machine."""

    def __init__(self, clock: trio.testing.MockClock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._share = rng.choice([0.0, 0.01, 0.05, 0.2, 0.6])

    def before_io_wait(self, timeout: float) -> None:
        """A loop iteration begins."""
        self._clock.jump(self._rng.expovariate(1) * self._share)

    def before_task_step(self, task: Any) -> None:
        """A task continues."""
        self._clock.jump(self._rng.expovariate(1) * self._share * 0.3)


def run_instantly(flavour: str, main: Callable[[], Any], rng: random.Random) -> Any:
    """Run a program with exact times, without waiting."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    slow = SlowProcessor(clock, rng)
    if flavour == "trio":
        return trio.run(main, clock=clock, instruments=[slow])
    return anyio.run(main, backend="trio", backend_options={"clock": clock, "instruments": [slow]})


def here() -> str:
    """The lane path of the caller."""
    run = active_run()
    assert run is not None
    return current_lane(run.root_lane).path


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["trio", "anyio-trio"])
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_n2_random_structured_program_observes_the_same(flavour: str, seed: int) -> None:
    """Groups, races, timeouts, channels and events give the same answers in the same order; no body runs."""
    steps = [*random_steps(random.Random(seed)), ("ask", 0.5)]
    world, again = World(random.Random(seed)), World(random.Random(seed + 1))
    main, main_again = (Program(flavour, steps, one, UNIT_S).main for one in (world, again))
    recording = recorded(lambda: run_instantly(flavour, main, random.Random(f"turns {seed}")), SEAMS)
    outcome = replayed(lambda: run_flavour(flavour, main_again), recording, seams=SEAMS)
    assert outcome.error is None
    assert again.observed == world.observed
    assert again.bodies == 0
    assert outcome.kinds() == []


@pytest.mark.slow
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_n2_random_program_observes_the_same_in_real_time(flavour: str, seed: int) -> None:
    """Timers, answers, threads and cancellations race within half a millisecond."""
    steps = [*random_steps(random.Random(seed), with_threads=True), ("ask", 0.5)]
    world, again = World(random.Random(seed)), World(random.Random(seed + 1))
    main, main_again = (Program(flavour, steps, one).main for one in (world, again))
    recording = recorded(lambda: run_flavour(flavour, main), SEAMS)
    outcome = replayed(lambda: run_flavour(flavour, main_again), recording, seams=SEAMS)
    assert outcome.error is None
    assert again.observed == world.observed
    assert again.bodies == 0
    assert outcome.kinds() == []


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_n1_each_task_and_thread_call_has_the_lane_of_where_it_was_started(flavour: str) -> None:
    """Tasks and calls in reused worker threads are named by their function and their number."""
    api: Any = trio if flavour == "trio" else anyio
    found: list[str] = []

    async def task() -> None:
        found.append(here())

    async def ready(*, task_status: Any) -> None:
        found.append(here())
        task_status.started()

    def call() -> str:
        return f"{here()} {api.from_thread.run_sync(here)}"

    async def main() -> None:
        found.append(here())
        async with trio.open_nursery() if flavour == "trio" else anyio.create_task_group() as group:
            group.start_soon(task)
            group.start_soon(task)
            await group.start(ready)
        for _ in range(2):
            found.append(await api.to_thread.run_sync(call))

    with inside(make_run(MemoryProcessor()), SEAMS):
        run_flavour(flavour, main)
    main_lane = found[0]
    below = [path.replace(main_lane, "…").replace(call.__qualname__.rpartition(".")[2], "call") for path in found[1:]]
    tasks = ["…/t:ready#1", "…/t:task#1", "…/t:task#2"]
    assert sorted(below) == [*tasks, "…/x:call#1 …/x:call#1", "…/x:call#2 …/x:call#2"]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_n2_a_deadline_that_has_passed_when_its_scope_is_entered(flavour: str) -> None:
    """An expired deadline cancels the first wait, in a replay too, although no time has passed there."""
    api: Any = trio if flavour == "trio" else anyio

    @spanreplay.boundary("tool", name="ask")
    async def ask() -> str:
        await api.sleep(0)
        return "an answer"

    async def main() -> str:
        with api.move_on_after(1e-9):
            return await ask()
        return "too late"

    seen: list[str] = []
    recording = recorded(lambda: seen.append(run_flavour(flavour, main)), SEAMS)
    assert seen == ["too late"]
    outcome = replayed(lambda: run_flavour(flavour, main), recording, seams=SEAMS)
    assert outcome.error is None
    assert outcome.result == "too late"
    assert outcome.kinds() == []


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_n2_deadline_that_has_passed_is_not_put_off_until_nothing_else_can_happen(flavour: str) -> None:
    """A wait below such a deadline is cancelled at once again, however much work others still have."""
    api: Any = trio if flavour == "trio" else anyio

    @spanreplay.boundary("tool", name="ask")
    async def ask(seconds: float) -> str:
        await api.sleep(seconds)
        return "an answer"

    async def main() -> list[str]:
        seen: list[str] = []

        async def other() -> None:
            while "too late" not in seen:
                seen.append(await ask(0.002))
            seen.append(await ask(0.002))

        async with trio.open_nursery() if flavour == "trio" else anyio.create_task_group() as group:
            group.start_soon(other)
            await ask(0.003)
            with api.move_on_after(1e-9):
                await ask(1)
            seen.append("too late")
        return seen

    seen: list[list[str]] = []
    recording = recorded(lambda: seen.append(run_flavour(flavour, main)), SEAMS)
    outcome = replayed(lambda: run_flavour(flavour, main), recording, seams=SEAMS)
    assert outcome.error is None
    assert outcome.result == seen[0]
    assert seen[0][-1] != "too late"
    assert outcome.kinds() == []


def busy_program(other: Callable[[list[Any]], Any]) -> Callable[[], Any]:
    """A trio program that makes steps all the time, beside `other`, which gets the list of observations."""

    @spanreplay.boundary("tool", name="ask")
    async def ask() -> str:
        return "an answer"

    async def main() -> list[Any]:
        seen: list[Any] = []
        has_ended: list[bool] = []

        async def wait() -> None:
            await other(seen)
            has_ended.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            for number in range(100_000):
                seen.append(number)
                await trio.sleep(0)
                if has_ended:
                    break
        return [*seen, await ask()]

    return main


@pytest.mark.parametrize("by_number", [False, True])
def test_n2_order_is_kept_where_hypothesis_is_imported(by_number: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis makes trio sort the tasks of a batch by creation instead of by wake-up."""
    monkeypatch.setattr(core, "_ALLOW_DETERMINISTIC_SCHEDULING", by_number)

    async def other(seen: list[Any]) -> None:
        for _ in range(20):
            await trio.sleep(0.001)
            seen.append("slept")

    main, found = busy_program(other), []
    recording = recorded(lambda: found.append(trio.run(main)), SEAMS)
    outcome = replayed(lambda: trio.run(main), recording, seams=SEAMS)
    assert outcome.result == found[0]
    assert by_number is core._ALLOW_DETERMINISTIC_SCHEDULING


def test_n2_what_a_thread_of_ones_own_tells_trio_comes_between_the_same_steps() -> None:
    """`TrioToken.run_sync_soon` and `from_thread.run` are called from a thread that trio did not create."""

    async def other(seen: list[Any]) -> None:
        token, is_told = trio.lowlevel.current_trio_token(), trio.Event()

        async def ask() -> str:
            await trio.sleep(0)
            return "an answer"

        def tell() -> None:
            time.sleep(0.002)
            token.run_sync_soon(seen.append, "told")
            time.sleep(0.002)
            answer = trio.from_thread.run(ask, trio_token=token)
            token.run_sync_soon(seen.append, answer)
            token.run_sync_soon(is_told.set)

        thread = threading.Thread(target=tell)
        thread.start()
        await is_told.wait()
        thread.join()

    main, found = busy_program(other), []
    recording = recorded(lambda: found.append(trio.run(main)), SEAMS)
    outcome = replayed(lambda: trio.run(main), recording, seams=SEAMS)
    assert outcome.result == found[0]
    assert {"told", "an answer"} <= set(found[0])
    assert outcome.kinds() == []


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_n2_worker_threads_end_in_the_recorded_order(flavour: str) -> None:
    """Thread calls that end in another order than they began end in that order again."""
    api: Any = trio if flavour == "trio" else anyio

    @spanreplay.boundary("tool", name="ask")
    def ask(number: int) -> str:
        time.sleep(0.004 * (number % 3))
        return f"{number} {random.SystemRandom().getrandbits(40):x}"

    async def main() -> list[str]:
        found: list[str] = []

        async def one(number: int) -> None:
            found.append(await api.to_thread.run_sync(ask, number))

        async with trio.open_nursery() if flavour == "trio" else anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(one, number)
        return found

    seen: list[list[str]] = []
    recording = recorded(lambda: seen.append(run_flavour(flavour, main)), SEAMS)
    outcome = replayed(lambda: run_flavour(flavour, main), recording, seams=SEAMS)
    assert outcome.error is None
    assert outcome.result == seen[0]
    assert outcome.kinds() == []


def test_n2_deadline_of_an_hour_passes_at_once() -> None:
    """A back-off of an hour and a deadline that cancels a call happen again without waiting."""
    seconds = 0.01

    @spanreplay.boundary("tool", name="slow")
    async def slow() -> str:
        await trio.sleep(seconds)
        return "late"

    async def main() -> list[str]:
        seen = []
        with trio.move_on_after(seconds / 2) as scope:
            seen.append(await slow())
        seen.append("cut off" if scope.cancelled_caught else "in time")
        await trio.sleep(seconds)
        return [*seen, await slow()]

    seen: list[list[str]] = []
    recording = recorded(lambda: seen.append(trio.run(main)), SEAMS)
    seconds = 3600.0
    outcome = replayed(lambda: trio.run(main), recording, seams=SEAMS)
    assert seen == [["cut off", "late"]]
    assert outcome.result == seen[0]
    assert outcome.kinds() == []


def test_n2_deadline_that_the_program_notices_itself() -> None:
    """A program that works until its scope's deadline has passed takes less time in its replay."""
    rounds = 0

    @spanreplay.boundary("tool", name="ask")
    async def ask() -> int:
        await trio.sleep(0.002)
        return random.SystemRandom().getrandbits(30)

    async def main() -> list[int]:
        nonlocal rounds
        answers = [await ask()]
        with trio.move_on_after(0.01) as scope:
            while not scope.cancel_called:
                rounds += 1
        return [*answers, await ask()]

    seen: list[list[int]] = []
    recording = recorded(lambda: seen.append(trio.run(main)), SEAMS)
    outcome = replayed(lambda: trio.run(main), recording, seams=SEAMS)
    assert outcome.result == seen[0]
    assert outcome.kinds() == []


def test_n2_call_that_completes_although_it_is_cancelled_does_so_again() -> None:
    """A call that finished inside a shield gives its answer in a replay too, and its task is cancelled afterwards."""

    @spanreplay.boundary("tool", name="shielded")
    async def shielded() -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.02)
        return f"{random.SystemRandom().getrandbits(40):x}"

    async def main() -> list[str]:
        seen: list[str] = []
        with trio.move_on_after(0.005) as scope:
            seen.append(await shielded())
            await trio.sleep_forever()
        return [*seen, str(scope.cancelled_caught)]

    seen: list[list[str]] = []
    recording = recorded(lambda: seen.append(trio.run(main)), SEAMS)
    outcome = replayed(lambda: trio.run(main), recording, seams=SEAMS)
    assert outcome.result == seen[0]
    assert len(seen[0]) == 2
    assert outcome.kinds() == []


def test_trio_is_left_as_it_was() -> None:
    """Without a run trio schedules at random as usual, and undo restores each patched name."""
    core = trio._core._run
    names = [(core, "_r"), (core.Runner, "spawn_impl"), (core.CancelStatus, "recalculate"), (trio, "current_time")]
    before = [vars(owner)[name] for owner, name in names]
    with inside(make_run(MemoryProcessor()), SEAMS):
        assert all(vars(owner)[name] is not old for (owner, name), old in zip(names, before, strict=True))
    assert all(vars(owner)[name] is old for (owner, name), old in zip(names, before, strict=True))
