"""API paths that providers added later, called through their real SDKs: each has its own call kind, and replays."""

from __future__ import annotations

import importlib.util

import pytest

from support.agents import AGENTS
from support.provider import Provider
from support.replaying import Workplace

BOUNDARIES = [
    "compute:openai.responses.input_tokens",
    "llm:openai.responses.compact",
    "compute:anthropic.messages.count_tokens",
    "llm:google.interactions",
    "llm:google.interactions",
    "embedding:bedrock.embed",
    "embedding:bedrock.embed",
    "llm:bedrock.text",
]


@pytest.mark.slow
def test_u1_s22_paths_of_later_releases_are_calls_and_replay(provider: Provider, workplace: Workplace) -> None:
    """Counts, compaction, interactions whole and streamed, embeddings of Nova and via an ARN, and Command's text."""
    for module in ("openai", "anthropic", "google.genai", "boto3"):
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            pytest.skip(f"{module} is not installed")
    recorded = workplace.record(AGENTS / "sdks" / "newer_paths_agent.py")
    provider.stop()
    for text in ("compact response.compaction", "interaction completed Answer", "event interaction.completed"):
        assert text in recorded.stdout
    recording = workplace.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert [call.boundary for call in recording.calls] == BOUNDARIES
    tokens = [(call.meta.get("tokens_in"), call.meta.get("tokens_out")) for call in recording.calls]
    assert tokens[1] == (90, 10)
    # Nova and Command report counts in headers; Titan's body has its own count, and its headers the rest
    assert tokens[5] == tokens[7] == (11, 3)
    assert tokens[6][0] != 11
    assert min(found[0] or 0 for found in tokens) > 0
    replayed = workplace.replay(AGENTS / "sdks" / "newer_paths_agent.py")
    assert replayed.stdout == recorded.stdout
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
