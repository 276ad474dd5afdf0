"""What an MCP server sends while a call runs: progress, logs, questions for a person, requests for a model's answer."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from support.agents import ENVIRONMENTS
from support.provider import Provider
from support.replaying import Workplace, assert_same

SERVER: Final = '''
import asyncio, sys

from pydantic import BaseModel

try:
    from mcp.server.mcpserver import Context, MCPServer
except ImportError:
    from mcp.server.fastmcp import Context, FastMCP as MCPServer
try:
    import mcp_types as types
except ImportError:
    from mcp import types

server = MCPServer("shop")


class Sure(BaseModel):
    sure: bool


@server.tool()
async def book(seat: str, ctx: Context) -> str:
    """Book a seat."""
    for step in range(3):
        await ctx.report_progress(step, 3)
        await asyncio.sleep(0.01 * len(seat))
    return f"{seat} is booked"


@server.tool()
async def confirm(seat: str, ctx: Context) -> str:
    """Ask a person."""
    found = await ctx.elicit(f"book {seat}?", Sure)
    return "asked"


@server.tool()
async def describe(seat: str, ctx: Context) -> str:
    """Ask the client's model."""
    words = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=f"describe {seat}"))
    found = await ctx.session.create_message(messages=[words], max_tokens=9)
    return found.content.text


if len(sys.argv) > 1:
    import uvicorn

    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="critical")
else:
    server.run()
'''
AGENT: Final = """
import asyncio, sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from openai import AsyncOpenAI

try:
    import mcp_types as types
except ImportError:
    from mcp import types

MODE = sys.argv[1]
SURE = True
model = AsyncOpenAI()


def progress_of(seat):
    async def progress(done, total, *message):
        if MODE == "slow":
            await asyncio.sleep(0.2)
        print("progress", seat, done, total)

    return progress


async def ask(context, params):
    return types.ElicitResult(action="accept", content={"sure": SURE})


async def sample(context, params):
    asked = [{"role": "user", "content": params.messages[0].content.text}]
    said = (await model.chat.completions.create(model="gpt-x", messages=asked)).choices[0].message.content
    print("sampled", said)
    content = types.TextContent(type="text", text=said)
    return types.CreateMessageResult(role="assistant", content=content, model="gpt-x")


async def work(session):
    if MODE == "progress":
        print((await session.call_tool("book", {"seat": "4a"}, progress_callback=progress_of("4a"))).content[0].text)
        both = [
            session.call_tool("book", {"seat": seat}, progress_callback=progress_of(seat)) for seat in ("5b", "600c")
        ]
        print([each.content[0].text for each in await asyncio.gather(*both)])
    elif MODE == "slow":
        print((await session.call_tool("book", {"seat": "4a"}, progress_callback=progress_of("4a"))).content[0].text)
        await asyncio.sleep(0.4)
    elif MODE == "question":
        print((await session.call_tool("confirm", {"seat": "4a"})).content[0].text)
    else:
        print((await session.call_tool("describe", {"seat": "4a"})).content[0].text)


async def main():
    callbacks = {"question": {"elicitation_callback": ask}, "model": {"sampling_callback": sample}}.get(MODE, {})
    server = StdioServerParameters(command=sys.executable, args=["server.py"])
    with open("errors.txt", "w") as errors:
        async with stdio_client(server, errlog=errors) as streams, ClientSession(*streams, **callbacks) as session:
            await session.initialize()
            await work(session)


asyncio.run(main())
"""
PLACES: Final = {"2": "", "1": "crewai", "1.9": "old"}


def prepare(tmp_path: Path, provider: Provider, version: str) -> Workplace:
    """Make a place with an agent and a server of one version of the SDK."""
    python = ENVIRONMENTS[PLACES[version]] if PLACES[version] else None
    workplace = Workplace(tmp_path, provider.environ(), python)
    workplace.write("server.py", SERVER)
    workplace.write("agent.py", AGENT)
    return workplace


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("version", list(PLACES))
@pytest.mark.parametrize("mode", ["progress", "slow", "question", "model"])
def test_u1_s50_what_an_mcp_server_sends_meanwhile_comes_again(
    tmp_path: Path, provider: Provider, version: str, mode: str
) -> None:
    """Progress of one call, of two at once, and behind the call; a question for a person, a request for a model."""
    if (version, mode) == ("1.9", "question"):
        pytest.skip("its client has no questions")
    workplace = prepare(tmp_path, provider, version)
    recorded = workplace.record("agent.py", mode)
    wanted = {"progress": "progress 600c 2.0 3.0", "slow": "progress 4a 2.0", "question": "asked", "model": "sampled"}[
        mode
    ]
    assert wanted in recorded.stdout
    provider.stop()
    assert_same(workplace.replay("agent.py", mode), recorded.stdout)


@pytest.mark.parametrize("version", ["2", "1"])
def test_n14_p12_another_answer_to_a_question_of_a_server_is_a_difference(
    tmp_path: Path, provider: Provider, version: str
) -> None:
    """The agent sends it to the server, though nothing else shows it."""
    workplace = prepare(tmp_path, provider, version)
    workplace.record("agent.py", "question")
    workplace.write("agent.py", AGENT.replace("SURE = True", "SURE = False"))
    replayed = workplace.replay("agent.py", "question")
    assert replayed.causes()[0] == ("changed_call", "mcp:elicitation/create"), replayed.stderr
