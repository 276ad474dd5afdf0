"""Anyio's tasks and calls of its worker threads, on asyncio; they end in any order."""

import random
import time
from secrets import token_hex

import anyio
import anyio.to_thread

import spanreplay

CALLS = 6
BODIES = []


@spanreplay.boundary("tool")
async def draw():
    BODIES.append("draw")
    await anyio.sleep(random.random() / 100)
    return token_hex(8)


@spanreplay.boundary("tool", name="draw")
def draw_in_thread():
    BODIES.append("draw")
    time.sleep(random.random() / 100)
    return token_hex(8)


async def use():
    found = []

    async def one():
        found.append(await draw())

    async def in_thread():
        found.append(await anyio.to_thread.run_sync(draw_in_thread))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(one)
            group.start_soon(in_thread)
    return found
