"""MCP servers: each served tool call is a separate run, and replays with the provider and the client gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.suites import insist_identical
from support.units import COMMAND, serve
from support.workers import input_of, output_of, units_of

SERVER: Final = """
import asyncio, random, sys, time, uuid
from contextlib import asynccontextmanager

from mcp.server.mcpserver import Context, MCPServer
from groq import AsyncGroq, Groq

STARTED, SEED = time.time(), random.random()

def ask(text):
    made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

@asynccontextmanager
async def lifespan(server):
    yield {"warm": ask("warm up")}

server = MCPServer("shop", lifespan=lifespan)

@server.tool()
def answer(number: int, user: str, ctx: Context) -> dict:
    first = ask(f"question-{number} of {user}")
    if number == 2:
        raise KeyError(number)
    return {"answer": first, "again": ask(f"question-{number} again"), "seed": SEED, "started": STARTED,
            "at": time.time(), "id": str(uuid.uuid4()), **ctx.request_context.lifespan_context}

@server.tool()
async def slow(number: int, user: str) -> str:
    async def one(word):
        made = await AsyncGroq().chat.completions.create(
            model="gpt-x", messages=[{"role": "user", "content": f"question-{number} of {user} {word}"}])
        return made.choices[0].message.content
    return " ".join(await asyncio.gather(one("first"), one("second")))

@server.prompt()
def greet(name: str) -> str:
    return f"greet {name} at {time.time()}"

@server.resource("shop://stock/{item}")
def stock(item: str) -> str:
    return f"{item}: {random.random()}"

if __name__ == "__main__":
    server.run()
"""


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with a server."""
    workplace = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    workplace.write("server.py", SERVER)
    return workplace


@asynccontextmanager
async def connected(place: Workplace, **environ: str) -> AsyncIterator[ClientSession]:
    """A client of a recorded server, which is its child process."""
    command = str(place.python.parent / "opentelemetry-instrument")
    server = StdioServerParameters(
        command=command, args=[str(place.python), "server.py"], cwd=place.path, env={**place.environ, **environ}
    )
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        yield session


def test_p3_p4_each_tool_call_served_is_a_run_and_replays_alone(provider: Provider, place: Workplace) -> None:
    """Concurrent calls of several tools, a prompt, a resource: each is a whole run, and identical without a client."""

    async def use() -> list[Any]:
        async with connected(place) as session:
            await session.list_tools()
            calls = [
                session.call_tool("answer" if number < 4 else "slow", {"number": number, "user": f"user-{number}"})
                for number in range(6)
            ]
            results = await asyncio.gather(*calls)
            await session.get_prompt("greet", {"name": "ann"})
            await session.read_resource("shop://stock/pear")
            return [json.loads(each.model_dump_json(by_alias=True, exclude_none=True)) for each in results]

    results = asyncio.run(asyncio.wait_for(use(), TIMEOUT_S))
    provider.stop()
    units = units_of(place)
    assert sorted(unit.root.app for unit in units) == ["answer"] * 4 + ["greet", "shop://stock/pear"] + ["slow"] * 2
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
        params = input_of(unit)["params"]
        if unit.root.app in ("answer", "slow"):
            number = params["arguments"]["number"]
            assert output_of(unit)["result"]["content"] == results[number]["content"]
            assert unit.root.outcome == ("error" if number == 2 else "ok")
            models = [call for call in unit.calls if call.kind == "llm"]
            assert models
            assert all(f"question-{number} " in call.request for call in models)
    failed = next(unit for unit in units if unit.root.outcome == "error")
    replayed = place.replay("server.py", source=failed.run_id)
    assert replayed.status == 0, replayed.stderr
    assert replayed.verdict["verdict"] == "identical"
    assert replayed.stdout == ""
    insist_identical(place, "server.py", units=list({each.root.app: each for each in units}.values()))


@pytest.mark.parametrize("is_json", [True, False], ids=["json", "events"])
def test_p3_a_tool_call_over_http_stays_in_its_request(is_json: bool, provider: Provider, place: Workplace) -> None:
    """There is no nested run: the request's unit has the model calls of the tool, and replays alone.

    With event streams, the server also sends timed pings.
    """
    app = f"server.streamable_http_app(stateless_http=True, json_response={is_json})"
    place.write("app.py", f"from server import server\napp = {app}\n")

    async def use(url: str) -> Any:
        async with streamable_http_client(f"{url}/mcp") as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            return await session.call_tool("answer", {"number": 1, "user": "ann"})

    with serve(place) as server:
        result = asyncio.run(asyncio.wait_for(use(server.url), TIMEOUT_S))
        server.stop()
    provider.stop()
    assert not result.is_error
    units = units_of(place)
    assert {unit.root.app for unit in units} == {"app:app"}
    (called,) = [unit for unit in units if "question-1" in str(unit.calls)]
    assert [call.name for call in called.calls if call.kind in ("llm", "compute")] == ["openai.chat.completions"] * 2
    replayed = place.replay(*COMMAND, source=called.run_id)
    assert replayed.status == 0, replayed.stderr
    assert replayed.verdict["verdict"] == "identical"


def test_p4_a_changed_tool_is_named_and_one_that_is_gone_stops_the_replay(provider: Provider, place: Workplace) -> None:
    """A changed result has one cause; a tool that no longer exists gives one line and status 1."""

    async def use() -> None:
        async with connected(place) as session:
            await session.call_tool("answer", {"number": 1, "user": "ann"})

    asyncio.run(asyncio.wait_for(use(), TIMEOUT_S))
    provider.stop()
    (unit,) = units_of(place)
    place.write("server.py", SERVER.replace('{"answer": first', '{"answer": first.upper()'))
    assert place.replay("server.py", source=unit.run_id).causes() == [("changed_call", "compute:output")]
    place.write("server.py", SERVER.replace("def answer", "def renamed"))
    gone = place.replay("server.py", source=unit.run_id)
    assert gone.status == 1
    assert "the tool 'answer' is not served any more" in gone.stderr
