"""An aiohttp client session."""

import os

import aiohttp


async def use():
    async with aiohttp.ClientSession() as session, session.get(os.environ["URL"] + "/json") as response:
        return await response.text()


async def fail():
    async with aiohttp.ClientSession() as session:
        return await session.get(os.environ["NOBODY"] + "/json")


async def abandon():
    async with aiohttp.ClientSession() as session, session.get(os.environ["URL"] + "/pieces") as response:
        await response.content.read(8)
