"""Trio's tasks and a thread of its cache; they end in any order."""

import random
import time
from secrets import token_hex

import trio

import spanreplay

CALLS = 6
BODIES = []


@spanreplay.boundary("tool")
async def draw():
    BODIES.append("draw")
    await trio.sleep(random.random() / 100)
    return token_hex(8)


@spanreplay.boundary("tool", name="draw")
def draw_in_thread():
    BODIES.append("draw")
    time.sleep(random.random() / 100)
    return token_hex(8)


async def fan_out():
    found = []

    async def one():
        found.append(await draw())

    async def in_thread():
        found.append(await trio.to_thread.run_sync(draw_in_thread))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(one)
        nursery.start_soon(in_thread)
    return found


def use():
    return trio.run(fan_out)
