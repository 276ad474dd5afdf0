"""Calls that an agent cancels while threads of its SDK are still working."""

from __future__ import annotations

from support.provider import Provider
from support.replaying import Workplace

AGENT = """
import asyncio
from groq import AsyncGroq

client = AsyncGroq()

async def ask(question):
    done = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": question}])
    return done.choices[0].message.content

async def fail():
    await asyncio.sleep(0.05)
    raise ValueError("enough")

async def main():
    # The client's first requests find out about its platform in threads
    tasks = [asyncio.create_task(ask("slow")) for _ in range(3)]
    try:
        await asyncio.gather(fail(), *tasks)
    except ValueError as error:
        for task in tasks:
            task.cancel()
        print(error, [type(each).__name__ for each in await asyncio.gather(*tasks, return_exceptions=True)])
    try:
        print(await asyncio.wait_for(ask("slow"), 0.05))
    except asyncio.TimeoutError:
        print("timeout")
    tasks = [asyncio.create_task(ask(question)) for question in ("a", "slow", "b")]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    print([task in done for task in tasks], await asyncio.gather(*done))

asyncio.run(main())
"""


def test_n2_calls_that_are_given_up_are_given_up_again(workplace: Workplace, provider: Provider) -> None:
    """Requests cancelled by a sibling's failure, by a timeout or by a faster request replay with the same output."""
    workplace.environ.update(provider.environ())
    agent = workplace.write("agent.py", AGENT)
    recorded = workplace.record(agent)
    assert "timeout" in recorded.stdout
    provider.stop()
    replayed = workplace.replay(agent)
    assert replayed.stdout == recorded.stdout
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


CLOSING = """
import asyncio, os, httpx

class Held(httpx.AsyncByteStream):
    def __init__(self, inner):
        self.inner = inner

    async def __aiter__(self):
        async for part in self.inner:
            yield part

    async def aclose(self):
        await self.inner.aclose()
        await asyncio.sleep(3600)

class Transport(httpx.AsyncHTTPTransport):
    async def handle_async_request(self, request):
        response = await super().handle_async_request(request)
        response.stream = Held(response.stream)
        return response

async def main():
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    body = {"model": "gpt-x", "messages": [{"role": "user", "content": "hi"}]}
    async with httpx.AsyncClient(transport=Transport()) as client:
        try:
            print((await asyncio.wait_for(client.post(url, json=body), 2)).status_code)
        except asyncio.TimeoutError:
            print("given up")

asyncio.run(main())
"""


def test_n2_a_call_that_is_given_up_while_its_response_is_closed_is_given_up_again(
    workplace: Workplace, provider: Provider
) -> None:
    """The answer had arrived whole; the agent never got it."""
    workplace.environ.update(provider.environ())
    agent = workplace.write("agent.py", CLOSING)
    assert workplace.record(agent).stdout == "given up\n"
    provider.stop()
    (call,) = workplace.recording().calls
    assert (call.outcome, call.meta["finish_reason"]) == ("cancelled", "stop")
    replayed = workplace.replay(agent)
    assert (replayed.status, replayed.stdout) == (0, "given up\n"), replayed.stderr
