"""uvloop: completions, timers and handovers happen in the recorded order, on a loop that stands in for uvloop's."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import sys
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import spanreplay
from spanreplay.runtime.lanes import current_lane
from spanreplay.runtime.run import active_run
from spanreplay.seams.concurrency import uvloop as _uvloop
from spanreplay.seams.concurrency import uvloop_steps as _uvloop_steps
from support.in_process import MemoryProcessor, Seams, inside, make_run, recorded, replayed
from support.programs import CORE, World, build, random_program

uvloop = pytest.importorskip("uvloop")
SEAMS: Seams = ((_uvloop.install, uvloop), (_uvloop_steps.install, uvloop))
BRANCHES = 3
GAP_S = 0.003
PROGRAMS = int(os.environ.get("SPANREPLAY_TEST_PROGRAMS", "60"))
REAL_UNIT_S = 0.0005
"""One unit of delay in a random program."""


def _run_new_loop(main: Coroutine[Any, Any, Any]) -> Any:
    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


WAYS: dict[str, Callable[[Coroutine[Any, Any, Any]], Any]] = {"run": uvloop.run, "new_event_loop": _run_new_loop}


def _program(delays: list[float], seen: list[Any]) -> Callable[[], Coroutine[Any, Any, Any]]:
    """Answers, sleeps and threads of several tasks, and races against the clock."""
    bodies: list[str] = []

    @spanreplay.boundary("tool", name="ask")
    async def ask(seconds: float) -> str:
        bodies.append("ask")
        await asyncio.sleep(seconds)
        return f"{random.SystemRandom().getrandbits(40):x}"

    @spanreplay.boundary("tool", name="compute")
    def compute(seconds: float) -> str:
        bodies.append("compute")
        time.sleep(seconds)
        return f"{random.SystemRandom().getrandbits(40):x}"

    async def branch(number: int) -> None:
        seen.append((number, await ask(delays[number])))
        await asyncio.sleep(delays[BRANCHES + number])
        seen.append((number, "slept"))
        seen.append((number, await asyncio.to_thread(compute, delays[2 * BRANCHES + number])))

    async def main() -> list[str]:
        await asyncio.gather(*(branch(number) for number in range(BRANCHES)))
        for future in asyncio.as_completed([ask(delays[number]) for number in range(BRANCHES)]):
            seen.append(await future)
        for limit, seconds in ((60.0, GAP_S), (GAP_S, 60.0)):
            try:
                seen.append(await asyncio.wait_for(ask(seconds), limit))
            except asyncio.TimeoutError:
                seen.append("too late")
        if sys.version_info >= (3, 11):
            for limit, seconds in ((60.0, GAP_S), (GAP_S, 60.0)):
                try:
                    async with asyncio.timeout(limit):
                        seen.append(await ask(seconds))
                except asyncio.TimeoutError:
                    seen.append("too late")
        seen.append(isinstance(asyncio.get_running_loop(), uvloop.Loop))
        return bodies

    return main


def test_n1_uvloop_names_its_tasks() -> None:
    """Tasks and thread calls have the same lanes as on asyncio's own loop."""

    def here() -> str:
        run = active_run()
        assert run is not None
        return current_lane(run.root_lane).path

    async def where() -> str:
        return here()

    async def main() -> list[str]:
        return [*await asyncio.gather(where(), where()), await asyncio.to_thread(here)]

    with inside(make_run(MemoryProcessor()), SEAMS):
        found = _run_new_loop(main())
    lanes = [
        path.rpartition("/")[2].replace(f"{test_n1_uvloop_names_its_tasks.__name__}.<locals>.", "") for path in found
    ]
    assert lanes == ["t:where#1", "t:where#2", "x:here#1"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(4))
def test_n2_order_on_uvloop_is_the_recorded_one(way: str, seed: int) -> None:
    """Answers, timers and threads that end in any order do so again, without waiting."""
    places = random.Random(seed).sample(range(3 * BRANCHES), 3 * BRANCHES)
    seen: list[Any] = []
    again: list[Any] = []
    delays = [GAP_S * place for place in places]
    recording = recorded(lambda: WAYS[way](_program(delays, seen)()), SEAMS)
    outcome = replayed(lambda: WAYS[way](_program(delays, again)()), recording, seams=SEAMS)
    assert outcome.error is None
    assert again == seen
    races = 2 if sys.version_info >= (3, 11) else 1
    assert [answer == "too late" for answer in seen[-2 * races - 1 : -1]] == [False, True] * races
    assert seen[-1] is True
    assert outcome.result == []  # no body ran
    assert outcome.kinds() == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.timeout is of Python 3.11")
@pytest.mark.parametrize("limit", [0.0, 0.0003, 0.002])
def test_n2_deadlines_shorter_than_uvloops_clock_come_where_they_came(limit: float) -> None:
    """uvloop counts milliseconds: a deadline below half of one needs no timer, and has not passed when it is set."""

    def program(seen: list[Any]) -> Callable[[], Coroutine[Any, Any, None]]:
        @spanreplay.boundary("tool", name="ask")
        async def ask(seconds: float) -> str:
            await asyncio.sleep(seconds)
            return "answer"

        async def hurry() -> None:
            for seconds in (60.0, 0.0):
                try:
                    async with asyncio.timeout(limit):
                        seen.append(await ask(seconds))
                except asyncio.TimeoutError:
                    seen.append("too late")

        async def count() -> None:
            await ask(0.0)
            for number in range(9):
                seen.append(number)
                await asyncio.sleep(0)

        async def main() -> None:
            await asyncio.gather(count(), hurry(), count())

        return main

    for _ in range(5):
        seen: list[Any] = []
        again: list[Any] = []
        recording = recorded(lambda: uvloop.run(program(seen)()), SEAMS)  # noqa: B023  # called here
        outcome = replayed(lambda: uvloop.run(program(again)()), recording, seams=SEAMS)  # noqa: B023
        assert outcome.error is None
        assert again == seen
        assert outcome.kinds() == []


def test_n2_uvloops_timers_do_not_fire_before_their_time() -> None:
    """uvloop may fire a timer up to half a millisecond early; in a run it fires once, at its time."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        early: list[float] = []
        for number in range(20):
            due = loop.time() + 0.001 + number * 0.0003
            is_over = asyncio.Event()

            def fire(due: float = due, is_over: asyncio.Event = is_over) -> None:
                early.append(max(0.0, due - loop.time()))
                is_over.set()

            loop.call_at(due, fire)
            await is_over.wait()
        return early

    with inside(make_run(MemoryProcessor()), SEAMS):
        assert uvloop.run(main()) == [0.0] * 20


MAKERS = [asyncio.new_event_loop, uvloop.new_event_loop]
EACH_LOOP = pytest.mark.parametrize("loop_of", MAKERS, ids=["asyncio", "uvloop"])
EACH_WAY = pytest.mark.parametrize("way", ["call_soon", "call_later", "call_at", "call_soon_threadsafe"])


def call(loop: asyncio.AbstractEventLoop, way: str, callback: Callable[..., None], *args: object) -> None:
    """Give a loop a callback and have it called."""
    when = {"call_later": [0.001], "call_at": [loop.time() + 0.0014]}.get(way, [])
    called = asyncio.Event()

    def run() -> None:
        called.set()

    getattr(loop, way)(*when, callback, *args)
    getattr(loop, way)(*when, run)
    loop.run_until_complete(called.wait())


@EACH_LOOP
@EACH_WAY
def test_u1_a_loop_reports_the_programs_own_callback(loop_of: Any, way: str) -> None:
    """A callback that fails is named in the loop's message as without a recorder."""

    def charge_card() -> None:
        raise ZeroDivisionError

    reports: list[str] = []
    with inside(make_run(MemoryProcessor()), SEAMS), contextlib.closing(loop_of()) as loop:
        loop.set_exception_handler(lambda _, context: reports.append(context["message"] + repr(context["handle"])))
        call(loop, way, charge_card)
    (report,) = reports
    assert report.count(charge_card.__qualname__) == 2
    assert "spanreplay" not in report


@EACH_LOOP
@EACH_WAY
def test_u1_a_loop_keeps_nothing_of_a_callback_that_was_called(loop_of: Any, way: str) -> None:
    """What the program gave with it lives no longer than without a recorder: no garbage collector is needed."""

    class Order:
        pass

    gc.disable()
    try:
        with inside(make_run(MemoryProcessor()), SEAMS), contextlib.closing(loop_of()) as loop:
            order = Order()
            lives = weakref.ref(order)
            call(loop, way, lambda order: None, order)
            del order
            assert lives() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("pause_s", [0, 0.003], ids=["at once", "late"])
def test_n2_uvloops_timer_that_was_called_too_early_can_be_cancelled(pause_s: float) -> None:
    """The timer is cancelled after uvloop's early call, and before its time; the loop's next turn may be after it."""

    async def main() -> list[bool]:
        loop = asyncio.get_running_loop()
        fired: list[bool] = []
        for _ in range(20):
            due = loop.time() + 0.0014
            timer = loop.call_at(due, fired.append, True)
            while loop.time() < due - 0.0005:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            is_early = loop.time() < due
            timer.cancel()
            time.sleep(pause_s)
            if is_early:
                await asyncio.sleep(0.003)
            else:
                fired.clear()
        return fired

    with inside(make_run(MemoryProcessor()), SEAMS):
        assert uvloop.run(main()) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(PROGRAMS // 2))
def test_n2_random_program_on_uvloop_observes_the_same(seed: int) -> None:
    """Recorded in real time, with races of half a millisecond: same answers in the same order, no body run."""
    program = [*random_program(random.Random(seed), 1, CORE), ("ask", 0.5)]
    world, again = World(random.Random(seed)), World(random.Random(0))
    recording = recorded(lambda: uvloop.run(build(program, world, REAL_UNIT_S)()), SEAMS)
    outcome = replayed(lambda: uvloop.run(build(program, again, REAL_UNIT_S)()), recording, seams=SEAMS)
    assert outcome.error is None
    assert again.observed == world.observed
    assert again.bodies == 0
    assert outcome.kinds() == []


def test_n2_loops_are_uvloops_own_where_nothing_is_replayed() -> None:
    """While a run is recorded, and afterwards, loops are uvloop's own."""
    with inside(make_run(MemoryProcessor()), SEAMS):
        recorded_on = uvloop.new_event_loop()
    after = uvloop.new_event_loop()
    recorded_on.close()
    after.close()
    assert type(recorded_on) is type(after) is uvloop.Loop
    assert not {"__new__", "call_at", "call_later", "call_soon", "call_soon_threadsafe"} & set(vars(uvloop.Loop))
