"""Tasks on uvloop; they end in any order."""

import asyncio
import random
from secrets import token_hex

import uvloop

import spanreplay

CALLS = 5
BODIES = []


@spanreplay.boundary("tool")
async def draw():
    BODIES.append("draw")
    await asyncio.sleep(random.random() / 100)
    return token_hex(8)


async def fan_out():
    return await asyncio.gather(*(draw() for _ in range(5)))


def use():
    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(fan_out())
    finally:
        loop.close()
