"""Agents that print and send the tracebacks of failed requests: SDKs with retries, tools, groups, secrets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest

from support.faulty_server import FaultyServer
from support.ports import free_port
from support.provider import Provider
from support.replaying import Workplace

SECRET: Final = "sk-proj-9vXwZ2uQ7tR4yP8mK3nB6cD1"
AGENT: Final = """
import asyncio, os, traceback
import anthropic, groq, httpx, openai, requests
import spanreplay

NOBODY, FAULTY = os.environ["NOBODY"], os.environ["FAULTY"]
ASKED = {"model": "gpt-x", "messages": [{"role": "user", "content": "hi"}]}
model = openai.OpenAI()


def report(name):
    text = traceback.format_exc()
    print(f"== {name}", text, sep="\\n")
    message = {"role": "user", "content": f"Why did {name} fail?\\n{text}"}
    print(model.chat.completions.create(model="gpt-x", messages=[message]).choices[0].message.content)


def ask(sdk, url, **more):
    client = sdk(base_url=url, api_key="sk-test", max_retries=1, timeout=0.5)
    (client.messages if sdk is anthropic.Anthropic else client.chat.completions).create(**ASKED, **more)


async def ask_async(sdk, url):
    async with sdk(base_url=url, api_key="sk-test", max_retries=1, timeout=0.5) as client:
        async for _ in await client.chat.completions.create(**ASKED, stream=True):
            pass


@spanreplay.boundary("tool")
def fetch(url):
    try:
        return httpx.get(url).text
    except httpx.HTTPError as exc:
        raise RuntimeError(f"no page at {url}") from exc


async def together():
    async with asyncio.TaskGroup() as group:
        for url in (NOBODY, FAULTY + "/half"):
            group.create_task(httpx.AsyncClient().get(url))


FAILING = {
    "openai": lambda: ask(openai.OpenAI, NOBODY),
    "openai timeout": lambda: ask(openai.OpenAI, FAULTY + "/hang"),
    "openai stream": lambda: [*openai.OpenAI(base_url=FAULTY + "/half").chat.completions.create(**ASKED, stream=True)],
    "async openai": lambda: asyncio.run(ask_async(openai.AsyncOpenAI, NOBODY)),
    "async openai stream": lambda: asyncio.run(ask_async(openai.AsyncOpenAI, FAULTY + "/stuck")),
    "groq": lambda: ask(groq.Groq, NOBODY),
    "anthropic": lambda: ask(anthropic.Anthropic, NOBODY, max_tokens=9),
    "tool": lambda: fetch(NOBODY),
    "secret": lambda: requests.get(NOBODY, params={"api_key": os.environ["SECRET"]}),
}
if hasattr(asyncio, "TaskGroup"):
    FAILING["group"] = lambda: asyncio.run(together())

for name, act in FAILING.items():
    try:
        act()
    except Exception:
        report(name)
    else:
        print("nothing has failed:", name)
"""


@pytest.mark.parametrize("level", ["full", "calls"])
def test_s61_agent_that_sends_tracebacks_of_failed_requests_is_identical(level: str, tmp_path: Path) -> None:
    """What an agent prints and tells its model about a failure is the same at each level; no secret is recorded."""
    provider = Provider().start()
    with FaultyServer() as server:
        environ = {"NOBODY": f"http://127.0.0.1:{free_port()}/v1", "FAULTY": server.url, "SECRET": SECRET}
        there = Workplace(tmp_path, {**provider.environ(), **environ, "SPANREPLAY_LEVEL": level})
        there.write("agent.py", AGENT)
        printed = there.record("agent.py").stdout
    provider.stop()
    assert "nothing has failed" not in printed
    assert printed.count("== ") == (10 if sys.version_info >= (3, 11) else 9)
    found = there.replay("agent.py")
    assert found.causes() == [], found.stderr
    assert found.verdict["verdict"] == "identical"
    assert SECRET in printed
    assert SECRET not in "".join(call.response + call.request for call in there.recording().calls)
