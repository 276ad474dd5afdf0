"""An unmodified agent on OpenAI's realtime API is recorded, and replays with the server gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from spanreplay.dialects import read_realtime
from support.agents import AGENTS
from support.realtime_server import RealtimeServer
from support.replaying import Workplace


@pytest.fixture
def realtime() -> Iterator[RealtimeServer]:
    """A realtime model that runs for the length of the test, unless the test stops it."""
    with RealtimeServer() as running:
        yield running


@pytest.mark.slow
def test_u1_s22_s26_realtime_agent_replays_byte_for_byte(realtime: RealtimeServer, tmp_path: Path) -> None:
    """Text, function calls, sound and two concurrent sessions are as recorded; each session is one model call."""
    there = Workplace(tmp_path, {"OPENAI_BASE_URL": realtime.url, "OPENAI_API_KEY": "sk-test-local-provider"})
    agent = AGENTS / "sdks" / "realtime_agent.py"
    recorded = there.record(agent)
    realtime.stop()
    recording = there.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert [c.boundary for c in recording.calls] == ["llm:openai.realtime"] * 3
    first, *spoken = recording.calls
    for call, answers in ((first, 3), *((each, 1) for each in spoken)):
        meta = dict(call.meta)
        assert (meta["model"], meta["response_model"]) == ("gpt-realtime-x", "gpt-realtime-x-2026-10-01")
        assert (meta["tokens_in"], meta["tokens_out"]) == (11 * answers, 12 * answers)
        assert (meta["provider"], meta["finish_reason"], meta["stream"]) == ("openai", "completed", True)
        assert len(meta["system_prompt_hash"]) == 64
    replayed = there.replay(agent)
    assert replayed.stdout == recorded.stdout
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
    assert replayed.verdict["sockets_denied"] == []
    events = ((side == "sent", message) for side, _, message in json.loads(first.response)["messages"])
    exchange = read_realtime(json.loads(first.request)["url"], events)
    assert exchange is not None
    assert [call.name for call in exchange.response.tool_calls] == ["pay"]
    assert exchange.response.text.count("Answer") == 2
    assert exchange.response.error.startswith("invalid_request_error: unknown nonsense")
    shown = exchange.dialect.openinference(exchange.body, exchange.request, exchange.response)
    assert shown["openinference.span.kind"] == "LLM"
    assert "paid" in str(shown["llm.input_messages.3.message.content"])
