"""A signal at an exact instruction, which a replay has to find: the program sends it only when it is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from support.replaying import Workplace

HEAD: Final = """
import _signal
import asyncio
import posix
import signal
import time

import spanreplay

# As from outside: the functions of `signal` are for the program's own signals
send = int if posix.environ.get(b"SPANREPLAY_MODE") == b"replay" else _signal.raise_signal

def arrive():
    send(signal.SIGTERM)

@spanreplay.boundary("tool", name="ask")
def ask(question, arrives=False):
    if arrives:
        arrive()
    return f"{question} {time.perf_counter_ns()}"

@spanreplay.boundary("tool", name="ask_later")
async def ask_later(question, arrives=False, goes_on=False):
    await asyncio.sleep(0.01)
    if arrives:
        arrive()
    if goes_on:
        await asyncio.sleep(0.01)
    return f"{question} {time.perf_counter_ns()}"

stops = []
signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
"""
BETWEEN_LINES: Final = """
for number in range(5):
    print(number, ask("work"), len(stops))
    if number == 2:
        arrive()
    print(len(stops))
"""
SAME_CODE: Final = """
def step(number):
    if number == 7:
        arrive()
    return number + len(stops)

print(ask("first"))
for number in range(10):
    print(step(number))
print(step(3), ask("last"), step(4))
"""
SAME_CODE_AFTER_CALLS: Final = """
def prepare(number):
    if number == 3:
        arrive()
    return f"{number} {len(stops)}"

async def one(number):
    return await ask_later(prepare(number))

async def main():
    print(await asyncio.gather(*(one(number) for number in range(5))))
    print(await ask_later("end"), len(stops))

asyncio.run(main())
"""
CANCELS: Final = """
async def main():
    tasks = []

    def stop(number, frame):
        print("stopping")
        for task in tasks:
            task.cancel()

    signal.signal(signal.SIGTERM, stop)

    async def one(number, **how):
        print(number, await ask_later(f"question {number}", **how))
        print(number, ask("more"))

    tasks += [asyncio.create_task(one(1)), asyncio.create_task(one(2, HOW)), asyncio.create_task(one(3))]
    print([type(found).__name__ for found in await asyncio.gather(*tasks, return_exceptions=True)])
    print(await ask_later("end"))

asyncio.run(main())
"""
IN_A_STEP: Final = """
async def main():
    async def count():
        for number in range(6):
            print("count", number, len(stops))
            await asyncio.sleep(0)

    async def work():
        print(await ask_later("work"))
        arrive()
        print("worked", len(stops))
        await asyncio.sleep(0)
        print("worked on", len(stops), await ask_later("more"))

    await asyncio.gather(work(), count())

asyncio.run(main())
"""
BLOCKING: Final = """
async def main():
    async def count():
        while not stops:
            print("count", await ask_later("count"))

    async def work():
        await ask_later("before")
        print(ask("blocks the loop", arrives=True), len(stops))

    await asyncio.gather(count(), work())
    print(await ask_later("end"))

asyncio.run(main())
"""
TWICE: Final = """
for number in range(4):
    print(number, ask("work", arrives=number == 1), len(stops))
    arrive()
    arrive()
    print(ask("more"), len(stops))
"""
COUNTING: Final = """
print(ask("first"))
for tick in range(6):
    print("tick", tick, len(stops))
    (send if tick == 3 else int)(signal.SIGTERM)
print(ask("last"), len(stops))
"""
CANCELS_OTHERS: Final = CANCELS.replace("for task in tasks:", "for task in (tasks[0], tasks[2]):")
CASES: Final = {
    "between_lines": BETWEEN_LINES,
    "same_code": SAME_CODE,
    "same_code_after_calls": SAME_CODE_AFTER_CALLS,
    "at_the_end_of_a_call": CANCELS.replace("HOW", "arrives=True"),
    "amid_a_call": CANCELS.replace("HOW", "arrives=True, goes_on=True"),
    "amid_a_call_that_ends": CANCELS_OTHERS.replace("HOW", "arrives=True, goes_on=True"),
    "counting": COUNTING,
    "in_a_step": IN_A_STEP,
    "blocking": BLOCKING,
    "twice": TWICE,
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(4)
def test_n2_signal_comes_at_the_same_instruction(name: str, tmp_path: Path) -> None:
    """The handler runs between the same two instructions, whatever ran between the calls before it."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", HEAD + CASES[name])
    recorded = workplace.record(agent)
    (timers,) = [each.root.manifest["timers"] for each in workplace.recordings()]
    assert any("|signal|" in timer for timer in timers)
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout
