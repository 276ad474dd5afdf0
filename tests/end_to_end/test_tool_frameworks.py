"""Unmodified agents on pydantic-ai, CrewAI, smolagents, Google ADK, DSPy and Agno replay byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from spanreplay.model.call import Recording
from support.agents import AGENTS, ENVIRONMENTS, ROOT, without_instrumentors
from support.provider import Provider
from support.replaying import Replayed, Workplace
from support.spans import assert_same_spans, read_attribute

# LiteLLM would fetch a price list from the internet when it is imported
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}


@dataclass(frozen=True)
class Framework:
    """One framework: its agent, its environment, the sections in one test, and what they must record."""

    script: str
    place: str
    sections: tuple[str, ...]
    tools: frozenset[str]
    instrumentors: tuple[str, ...]


FRAMEWORKS = {
    "pydantic-ai": Framework(
        "pydantic_ai_agent.py",
        "openai3",
        (),
        frozenset({"buy", "quote", "settle", "hesitate", "chart", "break_down", "book", "ask_clerk"}),
        ("openai",),
    ),
    "smolagents": Framework(
        "smolagents_agent.py", "openai3", (), frozenset({"buy", "quote", "break_down"}), ("openai", "smolagents")
    ),
    "agno": Framework(
        "agno_agent.py",
        "openai3",
        (),
        frozenset({"buy", "quote", "remember", "hesitate", "break_down", "settle", "close_book", "look_up"}),
        ("agno", "openai"),
    ),
    "google-adk": Framework(
        "google_adk_agent.py",
        "google-adk",
        (),
        frozenset({"buy", "quote", "settle", "remember", "give_up", "break_down", "look_up"}),
        ("google_adk",),
    ),
    "dspy": Framework(
        "dspy_agent.py", "google-adk", (), frozenset({"buy", "quote", "settle", "break_down"}), ("dspy",)
    ),
    "crewai": Framework(
        "crewai_agent.py",
        "crewai",
        ("chain", "limited", "failing", "structured", "direct"),
        frozenset({"buy", "settle", "quote", "break_down", "stat"}),  # it looks up what its agents were trained with
        ("crewai",),
    ),
    "crewai-delegating": Framework(
        "crewai_agent.py", "crewai", ("delegated", "together", "parallel"), frozenset({"buy", "stat"}), ("crewai",)
    ),
}


def _python(place: str) -> Path:
    python = ENVIRONMENTS[place]
    if not python.exists():
        pytest.skip(f"no {python.relative_to(ROOT)}: `make matrix` makes it")
    return python


def assert_replayed(replayed: Replayed, stdout: str, recording: Recording) -> None:
    """Assert that the replay printed and did the same, from the recording alone."""
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert (replayed.status, replayed.stdout) == (0, stdout)
    counts = replayed.verdict["counts"]
    assert counts["exact"] + counts["covered"] == counts["recorded"] == len(recording.calls)
    assert replayed.verdict["sockets_denied"] == []
    assert replayed.verdict["tokens"]["live"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.sampled(3)
def test_u1_s50_framework_replays_byte_for_byte(name: str, provider: Provider, workplace: Workplace) -> None:
    """With the provider stopped: same output, no tool body runs, the same OpenInference spans."""
    framework = FRAMEWORKS[name]
    environ = {**workplace.environ, **QUIET, **without_instrumentors(*framework.instrumentors)}
    there = Workplace(workplace.path, environ, _python(framework.place))
    ledger = there.path / "ledger.txt"
    recorded = there.record(AGENTS / framework.script, *framework.sections)
    provider.stop()
    before, recording = ledger.read_bytes(), there.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert {c.name for c in recording.calls if c.kind == "tool"} == framework.tools
    assert {c.kind for c in recording.calls} <= {"llm", "tool"}
    replayed = there.replay(AGENTS / framework.script, *framework.sections)
    assert_replayed(replayed, recorded.stdout, recording)
    assert ledger.read_bytes() == before
    assert assert_same_spans(there.path / ".spanreplay", recording.run_id) == set(framework.instrumentors)


# OpenInference's part for pydantic-ai processes the library's own spans and is added by the user
INSTRUMENTED = """
import runpy, sys
from openinference.instrumentation.pydantic_ai import OpenInferenceSpanProcessor
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from pydantic_ai import Agent
provider = TracerProvider()
provider.add_span_processor(OpenInferenceSpanProcessor())
trace.set_tracer_provider(provider)
Agent.instrument_all()
script, *sys.argv[1:] = sys.argv[1:]
sys.argv[0] = script
runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.slow
def test_u1_spans_of_pydantic_ai_are_the_same(provider: Provider, workplace: Workplace) -> None:
    """The library's own spans, extended by OpenInference, are the recorded ones."""
    there = Workplace(workplace.path, workplace.environ, _python("openai3"))
    agent = there.write("instrumented.py", INSTRUMENTED)
    args = (str(AGENTS / "pydantic_ai_agent.py"), "tools", "retries", "structured", "stream")
    recorded = there.record(agent, *args)
    provider.stop()
    recording = there.recording()
    kinds = read_attribute(there.path / ".spanreplay", recording.run_id, "pydantic-ai", "openinference.span.kind")
    assert kinds == {"AGENT", "LLM", "TOOL"}  # attributes that OpenInference adds at a span's end
    assert_replayed(there.replay(agent, *args), recorded.stdout, recording)
    assert assert_same_spans(there.path / ".spanreplay", recording.run_id, "pydantic-ai") == {"pydantic-ai"}


LANGCHAIN_TOOL = """
import asyncio, sys
from secrets import token_hex
from langchain_core.tools import tool

@tool
def draw(row: int) -> str:
    \"\"\"Draw a number.\"\"\"
    print("body", file=sys.stderr)
    return f"{row} {token_hex(8)}"
"""
PYDANTIC_AI = """
from pydantic_ai import Agent
from pydantic_ai.ext.langchain import tool_from_langchain
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

def answer(messages, info):
    if len(messages) == 1:
        return ModelResponse(parts=[ToolCallPart("draw", {"row": 1}, tool_call_id="call_1")])
    return ModelResponse(parts=[TextPart(str([p.content for p in messages[-1].parts]))])

print(Agent(FunctionModel(answer), tools=[tool_from_langchain(draw)]).run_sync("go").output)
"""
SMOLAGENTS = """
from smolagents import Tool
print(Tool.from_langchain(draw)(row=2))
"""
DSPY = """
import dspy
print(asyncio.run(dspy.Tool.from_langchain(draw).acall(row=1)))
"""
GOOGLE_ADK = """
from google.adk.integrations.langchain import LangchainTool
print(asyncio.run(LangchainTool(draw).run_async(args={"row": 2}, tool_context=None)))
"""
DSPY_OVER_MCP = """
import asyncio, sys
from secrets import token_hex
import anyio, dspy
from mcp.client.session import ClientSession
from mcp.server.mcpserver import MCPServer
from mcp.shared.memory import create_client_server_memory_streams

server = MCPServer("notes")

@server.tool()
def draw(row: int) -> str:
    \"\"\"Draw a number.\"\"\"
    print("body", file=sys.stderr)
    return f"{row} {token_hex(8)}"

async def main():
    low = server._lowlevel_server
    async with create_client_server_memory_streams() as (ours, theirs), anyio.create_task_group() as group:
        group.start_soon(lambda: low.run(*theirs, low.create_initialization_options()))
        async with ClientSession(*ours) as session:
            await session.initialize()
            (shown,) = (await session.list_tools()).tools
            print(await dspy.Tool.from_mcp_tool(session, shown).acall(row=1))
        group.cancel_scope.cancel()

asyncio.run(main())
"""
ADAPTED = {
    "pydantic-ai": ("openai3", LANGCHAIN_TOOL + PYDANTIC_AI, "tool:draw"),
    "smolagents": ("openai3", LANGCHAIN_TOOL + SMOLAGENTS, "tool:draw"),
    "dspy": ("google-adk", LANGCHAIN_TOOL + DSPY, "tool:draw"),
    "google-adk": ("google-adk", LANGCHAIN_TOOL + GOOGLE_ADK, "tool:draw"),
    "dspy-mcp": ("google-adk", DSPY_OVER_MCP, "mcp:draw"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTED)
@pytest.mark.sampled(2)
def test_s50_tool_of_another_framework_is_recorded_once(name: str, workplace: Workplace) -> None:
    """A framework's wrapper around a LangChain tool or an MCP session makes one call, not two."""
    place, source, boundary = ADAPTED[name]
    there = Workplace(workplace.path, {**workplace.environ, **QUIET}, _python(place))
    agent = there.write("agent.py", source)
    recorded = there.record(agent)
    assert recorded.stderr.count("body") == 1
    recording = there.recording()
    assert [c.boundary for c in recording.calls if c.name == "draw"] == [boundary]
    assert {c.kind for c in recording.calls} == {boundary.partition(":")[0]}
    replayed = there.replay(agent)
    assert_replayed(replayed, recorded.stdout, recording)
    assert "body" not in replayed.stderr
