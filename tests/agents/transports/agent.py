"""Asks one provider over HTTP/1.1, over HTTP/2 or in this process, as its argument says; the questions are the same."""

import asyncio
import os
import sys

import httpx
import httpx2
from app import app
from openai import AsyncOpenAI

HOW, URL = sys.argv[1], os.environ["APP_URL"]


def make_client(hx):
    if HOW == "asgi":
        return hx.AsyncClient(transport=hx.ASGITransport(app=app), base_url=URL)
    return hx.AsyncClient(http1=HOW == "h1", http2=HOW == "h2", base_url=URL)


async def main():
    client = AsyncOpenAI(base_url=URL + "/v1", api_key="sk-test", http_client=make_client(httpx2))
    said = [{"role": "user", "content": "same"}]
    asked = [client.chat.completions.create(model="gpt-x", messages=said, temperature=0.7) for _ in range(5)]
    for answer in await asyncio.gather(*asked):
        print(answer.choices[0].message.content)
    async for part in await client.chat.completions.create(model="gpt-x", messages=said, stream=True):
        print(part.choices[0].delta.content)
    async with make_client(httpx) as plain:
        print((await plain.get("/page?a=1")).json())
        async with plain.stream("POST", "/page", json={"stream": True}) as response:
            print(await response.aread())
    await client.close()


asyncio.run(main())
