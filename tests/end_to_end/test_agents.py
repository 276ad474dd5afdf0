"""The ordinary agents pass against the local provider while nothing is recorded."""

from __future__ import annotations

import re
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.agents import CURRENT, PYTHONS, run_agent
from support.provider import Provider

AgentRunner = Callable[..., subprocess.CompletedProcess[str]]
LANGGRAPH_MODES = ("parallel", "ten", "ten_same", "ten_async", "nested", "stream", "tokens", "fan_out")
REACT_MODES = ("react", "react_async")


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A provider that runs for the length of the test."""
    with Provider() as running:
        yield running


@pytest.fixture(params=[n if n == "current" else pytest.param(n, marks=pytest.mark.slow) for n in PYTHONS])
def python(request: pytest.FixtureRequest) -> Path:
    """One interpreter for each generation of SDKs installed here."""
    path = PYTHONS[request.param]
    if not path.exists():
        pytest.skip(f"no {path}: see tests/agents/requirements")
    return path


@pytest.fixture
def agent(provider: Provider, tmp_path: Path) -> AgentRunner:
    """A function that runs an agent in an empty directory and asserts that it succeeds."""

    def run(script: str, *args: str, python: Path = CURRENT) -> subprocess.CompletedProcess[str]:
        environ = {
            **provider.environ(),
            "AGENT_DB": str(tmp_path / "notes.db"),
            "AGENT_MCP_SERVER": str(CURRENT.parent / "mcp-server-time"),
        }
        done = run_agent(script, *args, environ=environ, cwd=tmp_path, python=python)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("done\n")
        return done

    return run


def test_openai_agent_runs_every_section(agent: AgentRunner, python: Path) -> None:
    """The OpenAI agent accepts everything the provider sends, on every generation of the SDK."""
    text = agent("openai_agent.py", python=python).stdout
    assert "stream 13 chunks" in text
    assert "rate_limited openai RateLimitError 429" in text
    assert "server_error openai InternalServerError 500" in text
    assert "parse_error pydantic_core" in text
    assert "slow APITimeoutError" in text
    lanes = re.findall(r"^forty (\d+) (.*)$", text, re.MULTILINE)
    assert [lane for lane, _ in lanes] == [str(n) for n in range(40)]
    assert len({answer for _, answer in lanes}) == 40


def test_anthropic_agent_runs_every_section(agent: AgentRunner, python: Path) -> None:
    """The Anthropic agent accepts everything the provider sends, on every generation of the SDK."""
    text = agent("anthropic_agent.py", python=python).stdout
    assert "errors anthropic RateLimitError 429" in text
    assert "ToolUseBlock" in text


def test_langgraph_agent_runs_every_mode(agent: AgentRunner, python: Path, tmp_path: Path) -> None:
    """The LangGraph agent calls its tools in parallel and their writes reach the database."""
    text = agent("langgraph_agent.py", *LANGGRAPH_MODES, python=python).stdout
    assert "ValueError('broke down: rust" in text
    assert len(set(re.findall(r"receipt (\d+)'$", text, re.MULTILINE))) >= 30
    with closing(sqlite3.connect(tmp_path / "notes.db")) as db:
        assert db.execute("SELECT count(*) FROM notes WHERE text = 'the same'").fetchone() == (20,)


def test_langgraph_prebuilt_agent_runs_sync_and_async(agent: AgentRunner, python: Path) -> None:
    """LangGraph's prebuilt agent calls its tools, in its own process as its connections belong to one event loop."""
    text = agent("langgraph_agent.py", *REACT_MODES, python=python).stdout
    assert "ValueError('broke down: rust" in text
    assert len(set(re.findall(r"receipt (\d+)'$", text, re.MULTILINE))) == 6


def test_mcp_agent_calls_a_real_server(agent: AgentRunner, python: Path) -> None:
    """The MCP agent speaks to mcp-server-time over stdio and asks the model once."""
    if not (CURRENT.parent / "mcp-server-time").exists():
        pytest.skip("mcp-server-time is not installed")
    text = agent("mcp_agent.py", python=python).stdout
    assert "tool Tool get_current_time" in text
    assert "Asia/Tokyo" in text
    assert "answer chatcmpl-" in text


def test_agents_do_not_know_about_us() -> None:
    """No agent contains a line about spanreplay: the recorded code is what a user would write."""
    agents = Path(__file__).parents[1] / "agents"
    for script in agents.glob("*_agent.py"):
        if script.name != "tool_agent.py":  # the declared boundaries are its subject
            assert "spanreplay" not in script.read_text(), script
