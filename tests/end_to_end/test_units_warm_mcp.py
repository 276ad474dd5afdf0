"""Calls of an MCP server that need state from earlier ones in its process: identical only after these."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from spanreplay.model.call import Recording
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.suites import replay_suite
from support.units import COMMAND, prepare, serve
from support.workers import units_of

SERVER: Final = """
import time, uuid

from mcp.server.mcpserver import MCPServer
from groq import AsyncGroq

server, client, known = MCPServer("shop"), AsyncGroq(), {}

@server.tool()
async def ask(text: str) -> dict:
    if text not in known:
        messages = [{"role": "user", "content": text}]
        made = await client.chat.completions.create(model="gpt-x", messages=messages)
        known[text] = made.choices[0].message.content
    return {"reply": known[text], "at": time.time(), "id": uuid.uuid4().hex}

@server.tool()
def count() -> dict:
    return {"known": sorted(known), "at": time.time()}

if __name__ == "__main__":
    server.run()
"""
APP: Final = "from server import server\napp = server.streamable_http_app(json_response=True, stateless_http={})\n"


async def use(session: ClientSession) -> None:
    """Ask two questions at once, one of them again, and count them."""
    await session.initialize()
    await asyncio.gather(*(session.call_tool("ask", {"text": text}) for text in ("one", "two")))
    await session.call_tool("ask", {"text": "one"})
    assert not (await session.call_tool("count", {})).is_error


def serve_calls(place: Workplace) -> None:
    """Record a server over HTTP while a client uses its tools."""

    async def connect(url: str) -> None:
        async with streamable_http_client(f"{url}/mcp") as (read, write), ClientSession(read, write) as session:
            await use(session)

    with serve(place) as server:
        asyncio.run(asyncio.wait_for(connect(server.url), TIMEOUT_S))
        server.await_ends()
        server.stop()


def insist(place: Workplace, unit: Recording, command: Sequence[str], before: int) -> None:
    """Assert that a unit diverges alone and is identical after the earlier ones, in a replay and in a suite."""
    alone = place.replay(*command, source=unit.run_id, options=("--warm", "0"))
    assert alone.status == 3, alone.stderr
    assert f"spanreplay replay {unit.run_id} --warm all -- " in alone.stderr
    warm = place.replay(*command, source=unit.run_id, options=["--warm", "all"])
    assert warm.status == 0, warm.stderr
    assert [each["why"] for each in warm.verdict["warm_up"]["units"]] == [""] * before
    suite = replay_suite(place, *command, options=["--process", unit.run_id, "--warm", "all"])
    assert (suite.status, suite.report["counts"]) == (0, {"identical": len(units_of(place))}), suite.stderr


@pytest.mark.parametrize("python", ["mcp", "fastmcp"])
@pytest.mark.sampled(1)
def test_p3_p4_a_tool_call_is_identical_behind_the_earlier_ones(
    python: str, provider: Provider, tmp_path: Path
) -> None:
    """Tools of a server on standard input and output share a module variable; calls came one by one and at once."""
    place = prepare(tmp_path, provider, "")
    source = SERVER.replace("mcp.server.mcpserver import MCPServer", "fastmcp import FastMCP as MCPServer")
    place.write("server.py", SERVER if python == "mcp" else source)

    async def connect() -> None:
        command = str(place.python.parent / "opentelemetry-instrument")
        arguments = [str(place.python), "server.py"]
        server = StdioServerParameters(command=command, args=arguments, cwd=place.path, env=place.environ)
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            await use(session)

    asyncio.run(asyncio.wait_for(connect(), TIMEOUT_S))
    provider.stop()
    units = units_of(place)
    assert [unit.root.app for unit in units] == ["ask", "ask", "ask", "count"]
    insist(place, units[-1], ["server.py"], 3)
    source = (place.path / "server.py").read_text()
    place.write("server.py", source.replace('"id": uuid.uuid4().hex', '"key": uuid.uuid4().hex'))
    changed = place.replay("server.py", source=units[-1].run_id, options=["--warm", "all"])
    assert changed.status == 0, changed.stderr
    assert [each["why"] for each in changed.verdict["warm_up"]["units"]] == ["changed_call at compute:output"] * 3
    assert place.replay("server.py", source=units[2].run_id, options=["--warm", "all"]).status == 3


def test_p3_p4_a_tool_call_over_http_is_identical_behind_the_earlier_ones(provider: Provider, tmp_path: Path) -> None:
    """Each call is a request of its server, which keeps no sessions."""
    place = prepare(tmp_path, provider, APP.format(True))
    place.write("server.py", SERVER)

    serve_calls(place)
    provider.stop()
    units = units_of(place)
    counted = next(unit for unit in reversed(units) if "tools/call" in str(unit.calls))
    insist(place, counted, COMMAND, units.index(counted))


def test_p3_a_request_that_opens_a_session_draws_its_id_again(provider: Provider, tmp_path: Path) -> None:
    """The server makes the session's id from random bytes and sends it to the client."""
    place = prepare(tmp_path, provider, APP.format(False))
    place.write("server.py", SERVER)
    serve_calls(place)
    provider.stop()
    replayed = place.replay(*COMMAND, source=units_of(place)[0].run_id)
    assert replayed.status == 0, replayed.stderr
    assert replayed.verdict["verdict"] == "identical"


@pytest.mark.parametrize("is_json", [True, False])
@pytest.mark.sampled(1)
def test_p3_p4_a_tool_call_of_a_session_is_identical_behind_the_request_that_opened_it(
    is_json: bool, provider: Provider, tmp_path: Path
) -> None:
    """The stream that the client keeps open until it has finished is not warmed up in full.

    It ends when its client leaves, or before that when the session's last request ends it.
    """
    place = prepare(tmp_path, provider, APP.format(False).replace("json_response=True", f"json_response={is_json}"))
    place.write("server.py", SERVER)
    serve_calls(place)
    provider.stop()
    units = units_of(place)
    counted = next(unit for unit in reversed(units) if "tools/call" in str(unit.calls))
    assert place.replay(*COMMAND, source=counted.run_id, options=("--warm", "0")).status == 3
    warm = place.replay(*COMMAND, source=counted.run_id, options=["--warm", "all"])
    assert warm.status == 0, warm.stderr
    stream, left_out = next(unit for unit in units if '"method":"GET"' in unit.calls[0].response), []
    for each in warm.verdict["warm_up"]["units"]:
        assert not each["why"] or each["run_id"] == stream.run_id, warm.stderr
        left_out += [each["why"]] if each["why"] else []
    assert left_out in (["its client was still connected at this unit's last call"], ["missing_call at http:response"])
