"""Asynchronous generators that an agent abandons are closed when the garbage collector finds them."""

from __future__ import annotations

import pytest

from support.replaying import Workplace

LEFT = """
import asyncio, gc, os, time
import spanreplay

gc.disable()

async def numbers():
    try:
        yield 1
    finally:
        await asyncio.sleep(0)

async def leave():
    generator = numbers()
    circle = [generator]
    circle.append(circle)
    await anext(generator)

@spanreplay.boundary("tool", name="look", effect="read")
async def look(number):
    await asyncio.to_thread(time.sleep, 0.002 * number)
    return number

async def ask(number):
    print("asked", await look(number))
    if str(number) == os.environ["COLLECT"]:
        gc.collect()

async def walk():
    for step in range(10000):
        print("step", step)
        await asyncio.sleep(0)

async def main():
    for _ in range(25):
        await leave()
    print(await look(0))
    await asyncio.gather(walk(), *(ask(number) for number in range(1, 6)))

asyncio.run(main())
"""


@pytest.mark.parametrize(("then", "now"), [("1", "0"), ("0", "2")])
def test_s5_when_garbage_is_collected_does_not_matter(then: str, now: str, workplace: Workplace) -> None:
    """The loop closes abandoned asynchronous generators, at another time in a replay than when recorded."""
    agent = workplace.write("agent.py", LEFT)
    recorded = workplace.record(agent, COLLECT=then)
    assert recorded.stdout.rindex("asked") < recorded.stdout.rindex("step"), "the order of nothing was tested"
    replayed = workplace.replay(agent, COLLECT=now)
    assert replayed.stdout == recorded.stdout, replayed.stderr
    assert replayed.status == 0
