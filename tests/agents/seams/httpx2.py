"""An httpx2 client."""

import os

import httpx2


def use():
    with httpx2.Client() as client:
        return client.get(os.environ["URL"] + "/json").text


def fail():
    with httpx2.Client() as client:
        return client.get(os.environ["NOBODY"] + "/json")


async def abandon():
    async with httpx2.AsyncClient() as client, client.stream("GET", os.environ["URL"] + "/pieces") as response:
        async for _ in response.aiter_bytes():
            break
