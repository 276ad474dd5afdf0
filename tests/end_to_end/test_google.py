"""An unmodified agent on Google's SDK is recorded, and replays byte for byte."""

from __future__ import annotations

import importlib.util

import pytest

from spanreplay.seams.table import SEAMS
from support.agents import AGENTS
from support.provider import Provider
from support.replaying import Workplace


@pytest.mark.slow
@pytest.mark.parametrize("http_client", ["httpx", "httpx2"])
def test_u1_s61_google_agent_replays_byte_for_byte(http_client: str, provider: Provider, workplace: Workplace) -> None:
    """Answers, streams, tools, errors and concurrent calls are as recorded, with the provider gone."""
    workplace.environ.update(GOOGLE_GENAI_HTTP_CLIENT=http_client, AGENT_ASYNC=http_client)
    recorded = workplace.record(AGENTS / "google_agent.py")
    provider.stop()
    recording = workplace.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert {c.boundary for c in recording.calls if c.kind != "http"} == {"llm:google.generate_content"}
    assert "errors google.genai.errors ClientError 429 RESOURCE_EXHAUSTED" in recorded.stdout
    replayed = workplace.replay(AGENTS / "google_agent.py")
    assert replayed.stdout == recorded.stdout
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
    assert replayed.verdict["sockets_denied"] == []


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("aiohttp") is None, reason="aiohttp is not installed")
@pytest.mark.skipif("aiohttp" not in {seam.name for seam in SEAMS}, reason="there is no seam for aiohttp")
def test_u1_s61_google_agent_on_aiohttp_replays(provider: Provider, workplace: Workplace) -> None:
    """Asynchronous calls through aiohttp, which the SDK prefers where it is installed, replay too."""
    recorded = workplace.record(AGENTS / "google_agent.py", "async")
    provider.stop()
    assert len(workplace.recording().calls) == 12
    replayed = workplace.replay(AGENTS / "google_agent.py", "async")
    assert replayed.stdout == recorded.stdout
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr


ASKS_BY_URL = """
import httpx, os
url = os.environ["GOOGLE_GEMINI_BASE_URL"] + "/v1beta/models/gemini-x:generateContent"
body = {"contents": [{"parts": [{"text": "hello"}]}]}
print(httpx.post(url, params={"key": os.environ["GEMINI_API_KEY"]}, json=body).json())
"""


def test_a_google_key_in_the_url_is_nowhere_in_the_data_directory(provider: Provider, workplace: Workplace) -> None:
    """Google takes the API key as a query parameter; no file contains it, and the call replays with another key."""
    key = "AIzaSyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q"
    agent = workplace.write("agent.py", ASKS_BY_URL)
    recorded = workplace.record(agent, GEMINI_API_KEY=key)
    provider.stop()
    recording = workplace.recording()
    assert [c.boundary for c in recording.calls] == ["llm:google.generate_content"]
    files = [p for p in (workplace.path / ".spanreplay").rglob("*") if p.is_file()]
    assert [p for p in files if key.encode() in p.read_bytes()] == []
    replayed = workplace.replay(agent, GEMINI_API_KEY="another")
    assert (replayed.status, replayed.stdout) == (0, recorded.stdout), replayed.stderr
