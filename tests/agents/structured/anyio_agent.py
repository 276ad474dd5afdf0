"""An anyio agent, on the backend that is named: parallel identical prompts, consumers of a stream, limits, threads."""

import os
import sys

import anyio
import anyio.from_thread
import anyio.to_thread
import httpx
from anyio.abc import TaskStatus
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

URL = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
PATIENCE_S = 0.05  # a slow answer takes longer


async def ask(client: httpx.AsyncClient, prompt: str) -> str:
    for attempt in range(5):
        answer = await client.post(URL, json={"model": "m", "messages": [{"role": "user", "content": prompt}]})
        if answer.status_code == 200:
            return str(answer.json()["choices"][0]["message"]["content"])
        await anyio.sleep(0.2 * 2**attempt)
    return "gave up"


async def main() -> None:
    limiter = anyio.CapacityLimiter(3)
    async with httpx.AsyncClient(timeout=30) as client:

        async def produce(number: int, channel: MemoryObjectSendStream[tuple[int, str]]) -> None:
            async with channel, limiter:
                await channel.send((number, await ask(client, "the same question")))

        async def consume(name: str, channel: MemoryObjectReceiveStream[tuple[int, str]]) -> None:
            async with channel:
                async for number, answer in channel:
                    print(name, number, answer, await ask(client, "and then"))

        async def serve(*, task_status: TaskStatus[str]) -> None:
            task_status.started(await ask(client, "ready"))

        send, receive = anyio.create_memory_object_stream[tuple[int, str]](1)
        async with anyio.create_task_group() as group, send, receive:
            for name in ("a", "b"):
                group.start_soon(consume, name, receive.clone())
            for number in range(6):
                group.start_soon(produce, number, send.clone())
            print("started", await group.start(serve))

        try:
            with anyio.fail_after(PATIENCE_S):
                print("patient", await ask(client, "slow"))
        except TimeoutError:
            print("too slow")
        print("retried", await ask(client, "fail 500 twice"))

        def work(number: int) -> str:
            return anyio.from_thread.run(ask, client, "from a thread") + str(number)

        async def in_thread(number: int) -> None:
            print("thread", number, await anyio.to_thread.run_sync(work, number, limiter=limiter))

        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(in_thread, number)


anyio.run(main, backend=sys.argv[1])
