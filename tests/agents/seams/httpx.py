"""An httpx client."""

import os

import httpx


def use():
    with httpx.Client() as client:
        return client.get(os.environ["URL"] + "/json").text


def fail():
    with httpx.Client() as client:
        return client.get(os.environ["NOBODY"] + "/json")


async def abandon():
    async with httpx.AsyncClient() as client, client.stream("GET", os.environ["URL"] + "/pieces") as response:
        async for _ in response.aiter_bytes():
            break
