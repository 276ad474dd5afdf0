"""A websockets client, and a server in the same process."""

import os
from secrets import token_hex

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

PORT = int(os.environ["PORT"])
BODIES = []


async def answer(connection):
    async for message in connection:
        BODIES.append("answer")
        await connection.send(f"{message} {token_hex(8)}")


async def use():
    async with serve(answer, "127.0.0.1", PORT), connect(f"ws://127.0.0.1:{PORT}") as connection:
        await connection.send("row 1")
        return await connection.recv()
