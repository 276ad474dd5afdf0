"""First completions of a run, before its loop has ever been idle, arrive between the same callbacks again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio._backends._asyncio as on_asyncio
import anyio._backends._trio as on_trio
import anyio.to_thread
import pytest
import trio
import uvloop

import spanreplay
from spanreplay.runtime.order.loops import BEGUN
from spanreplay.seams.concurrency import anyio as _anyio
from spanreplay.seams.concurrency import trio as _trio
from spanreplay.seams.concurrency import uvloop as _uvloop
from spanreplay.seams.concurrency import uvloop_steps as _uvloop_steps
from support.in_process import Seams, recorded, replayed

SEAMS: Seams = (
    (_uvloop.install, uvloop),
    (_uvloop_steps.install, uvloop),
    (_trio.install, trio),
    (_anyio.install, on_asyncio),
    (_anyio.install, on_trio),
)
STEPS = 3
"""Number of steps after the arrival; before it, as many as there is time for."""
STEPS_MAX = 10_000
STEP_S = 0.0004
STEP_SIZE = 20_000
"""Some tenths of a millisecond of work."""
WAIT_S = 0.0015
IDLE_S = 0.5
"""Long enough for the loop to be idle, even if a millisecond passes before it checks."""


@spanreplay.boundary("tool", name="ask")
async def _ask(seconds: float) -> str:
    await anyio.sleep(seconds)
    return "answer"


def _compute() -> str:
    time.sleep(WAIT_S)
    return "computed"


async def _call() -> str:
    return await _ask(WAIT_S)


async def _sleep() -> str:
    await anyio.sleep(WAIT_S)
    return "slept"


async def _deadline() -> str:
    with anyio.move_on_after(WAIT_S):
        await anyio.sleep(60)
    return "too late"


async def _wait_for() -> str:
    try:
        await asyncio.wait_for(asyncio.sleep(60), WAIT_S)
    except asyncio.TimeoutError:
        return "too late"
    return "in time"


async def _anyio_thread() -> str:
    return await anyio.to_thread.run_sync(_compute)


def _think() -> str:
    for _ in range(20):
        sum(range(STEP_SIZE))
    return "thought"


async def _thinking_thread() -> str:
    return await anyio.to_thread.run_sync(_think)


async def _executor() -> str:
    return await asyncio.get_running_loop().run_in_executor(None, _compute)


async def _own_thread() -> str:
    is_set, loop = asyncio.Event(), asyncio.get_running_loop()

    def tell() -> None:
        time.sleep(WAIT_S)
        loop.call_soon_threadsafe(is_set.set)

    thread = threading.Thread(target=tell)
    thread.start()
    await is_set.wait()
    thread.join()
    return "told"


def _program(
    first: Callable[[], Awaitable[str]], seen: list[Any], step_size: int = STEP_SIZE
) -> Callable[[], Any]:  # fmt: skip
    has_come: list[bool] = []

    async def begin() -> None:
        seen.append(await first())
        has_come.append(True)

    async def count() -> None:
        left = STEPS
        for number in range(STEPS_MAX):
            left -= len(has_come)
            if not left:
                return
            seen.append(number)
            sum(range(step_size))  # no sleep: that would be a point to count from
            await anyio.sleep(0)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(begin)
            group.start_soon(count)
        await _ask(0)

    return main


LOOPS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "asyncio": lambda main: asyncio.run(main()),
    "uvloop": lambda main: uvloop.run(main()),
    "trio": lambda main: anyio.run(main, backend="trio"),
}
ANYWHERE = (_call, _sleep, _deadline, _anyio_thread)
ON_ASYNCIO = (_wait_for, _executor, _own_thread)


@pytest.mark.parametrize(
    ("loop", "first"),
    [(loop, first) for loop in LOOPS for first in (*ANYWHERE, *(ON_ASYNCIO if loop != "trio" else ()))],
)
def test_n2_what_comes_first_comes_between_the_same_steps(loop: str, first: Callable[[], Awaitable[str]]) -> None:
    """A run's first call, timer or thread completes while the program still does something else."""
    seen: list[Any] = []
    again: list[Any] = []
    recording = recorded(lambda: LOOPS[loop](_program(first, seen)), SEAMS)
    outcome = replayed(lambda: LOOPS[loop](_program(first, again)), recording, seams=SEAMS)
    assert outcome.error is None
    assert again == seen
    assert outcome.kinds() == []
    assert outcome.session.gate.skipped == []


@pytest.mark.parametrize("loop", LOOPS)
def test_n2_loop_that_is_faster_waits_for_the_thread(loop: str) -> None:
    """A replay whose steps take no time still has to wait for the computation of a real thread."""
    seen: list[Any] = []
    again: list[Any] = []
    recording = recorded(lambda: LOOPS[loop](_program(_thinking_thread, seen)), SEAMS)
    outcome = replayed(lambda: LOOPS[loop](_program(_thinking_thread, again, 1)), recording, seams=SEAMS)
    assert outcome.error is None
    assert again == seen
    assert (outcome.kinds(), outcome.session.gate.skipped) == ([], [])


def test_n2_nothing_is_noted_where_the_loop_was_idle_first() -> None:
    """If the loop was idle before the first completion, no place needs to be recorded."""

    async def main() -> None:
        await asyncio.sleep(IDLE_S)
        await asyncio.to_thread(_compute)
        await _ask(0.001)

    manifest = recorded(lambda: asyncio.run(main())).root.manifest
    assert not [name for name in manifest["timers"] if name.endswith(BEGUN)]


def test_n2_sleep_in_a_loop_holds_up_nobody() -> None:
    """If a loop's own thread calls `time.sleep` while other threads work, later completions still come in turn."""

    def program(seen: list[Any]) -> Callable[[], Any]:
        async def work() -> None:
            seen.append(await asyncio.to_thread(_compute))

        async def main() -> None:
            await _ask(0)
            task = asyncio.create_task(work())
            for number in range(STEPS_MAX):
                if task.done():
                    break
                seen.append(number)
                time.sleep(STEP_S)  # the loop is kept busy
                await asyncio.sleep(0)

        return main

    seen: list[Any] = []
    again: list[Any] = []
    recording = recorded(lambda: asyncio.run(program(seen)()))
    outcome = replayed(lambda: asyncio.run(program(again)()), recording)
    assert outcome.error is None
    assert again == seen
    assert outcome.session.gate.skipped == []
