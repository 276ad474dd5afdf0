"""A trio agent: parallel identical prompts over httpx, a race, a timeout, a stream, retries with back-off, threads."""

import os

import httpx
import trio

URL = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
PATIENCE_S = 0.05  # a slow answer takes longer


def body(prompt: str, *, stream: bool = False) -> dict[str, object]:
    return {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": prompt}], "stream": stream}


async def ask(client: httpx.AsyncClient, prompt: str) -> str:
    for attempt in range(5):
        answer = await client.post(URL, json=body(prompt))
        if answer.status_code == 200:
            return str(answer.json()["choices"][0]["message"]["content"])
        await trio.sleep(0.2 * 2**attempt)
    return "gave up"


def ask_in_thread(prompt: str) -> str:
    with httpx.Client(timeout=30) as client:
        answer = client.post(URL, json=body(prompt))
    trio.from_thread.run(trio.sleep, 0.01)
    return str(answer.json()["choices"][0]["message"]["content"])


async def main() -> None:
    async with httpx.AsyncClient(timeout=30) as client:

        async def sample(number: int) -> None:
            print("sample", number, await ask(client, "the same question"))

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(sample, number)

        async def race(number: int, prompt: str, scope: trio.CancelScope) -> None:
            try:
                print("race", number, await ask(client, prompt))
                scope.cancel()
            finally:
                print("race", number, "ends")

        async with trio.open_nursery() as nursery:
            for number, prompt in enumerate(["slow", "quick", "slow", "quick"]):
                nursery.start_soon(race, number, prompt, nursery.cancel_scope)

        with trio.move_on_after(PATIENCE_S) as scope:
            print("patient", await ask(client, "slow"))
        print("too slow:", scope.cancelled_caught)
        print("retried", await ask(client, "fail 500 twice"))

        parts: list[str] = []
        async with client.stream("POST", URL, json=body("tell a story", stream=True)) as answer:
            async for line in answer.aiter_lines():
                parts.append(line)
        print("stream", len(parts), parts[0])

        async def in_thread(number: int) -> None:
            print("thread", number, await trio.to_thread.run_sync(ask_in_thread, "the same question"))

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(in_thread, number)


trio.run(main)
