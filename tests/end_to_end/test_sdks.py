"""Unmodified agents on the SDKs of other providers are recorded, and replay byte for byte with the provider gone."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import pytest

from support.agents import AGENTS, LITELLM
from support.provider import Provider
from support.replaying import Workplace


@dataclass(frozen=True)
class Sdk:
    """An SDK: its module, its agent, and the boundaries that the agent crosses."""

    module: str
    script: str
    boundaries: frozenset[str]
    printed: tuple[str, ...] = ()


CHAT = "llm:openai.chat.completions"
SDKS = {
    "azure": Sdk(
        "openai",
        "azure_agent.py",
        frozenset({CHAT, "embedding:openai.embeddings"}),
        ("error 429", "tool [", "v1 Answer"),
    ),
    "bedrock": Sdk(
        "boto3",
        "bedrock_agent.py",
        frozenset(
            {"llm:bedrock.converse", "llm:anthropic.messages", "llm:bedrock.text", "llm:bedrock.nova"}
            | {"embedding:bedrock.embed"}
        ),
        ("converse chunk {'contentBlockDelta'", "error {'Message': ", "left {'messageStart'"),
    ),
    "cohere": Sdk(
        "cohere",
        "cohere_agent.py",
        frozenset({"llm:cohere.chat", "llm:cohere.chat.v1", "embedding:cohere.embed", "retriever:rerank"}),
        ("error 429", "rerank [(", "old event"),
    ),
    "mistral": Sdk(
        "mistralai", "mistral_agent.py", frozenset({CHAT, "embedding:openai.embeddings"}), ("error 400", "event {")
    ),
    "groq": Sdk("groq", "groq_agent.py", frozenset({CHAT}), ("error 400", "chunk {")),
    "ollama": Sdk(
        "ollama",
        "ollama_agent.py",
        frozenset({"llm:ollama.chat", "llm:ollama.generate", "embedding:ollama.embed"}),
        ("error 400", "chunk {"),
    ),
    "engines": Sdk(
        "openai",
        "engine_agent.py",
        frozenset({CHAT, "llm:openai.completions", "llm:sglang.generate", "retriever:rerank", "compute:vllm.tokenize"}),
        ("Let me think about it.", "logprobs [(", "sglang line data: {"),
    ),
    "vertex": Sdk(
        "google.genai",
        "vertex_agent.py",
        frozenset({"llm:google.generate_content", "embedding:google.embed_content", "llm:anthropic.messages"}),
        ("gemini chunk", "claude event message_stop"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("sdk", SDKS.values(), ids=SDKS)
def test_u1_s26_s58_sdk_replays_byte_for_byte(sdk: Sdk, provider: Provider, workplace: Workplace) -> None:
    """Answers, chunks, tool calls, errors and concurrent calls come back as they were, each as its own kind of call."""
    if importlib.util.find_spec(sdk.module.partition(".")[0]) is None:
        pytest.skip(f"{sdk.module} is not installed")
    provider.determinism = "plan-1"
    recorded = workplace.record(AGENTS / "sdks" / sdk.script)
    provider.stop()
    for text in sdk.printed:
        assert text in recorded.stdout
    recording = workplace.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert {call.boundary for call in recording.calls if call.kind != "http"} == sdk.boundaries
    assert len(recording.calls) == len(provider.requests)
    asked = [call for call in recording.calls if call.outcome == "ok" and call.kind == "llm"]
    assert all("model" in call.meta for call in asked if call.name != "sglang.generate")  # one engine, one model
    assert all(call.meta["finish_reason"] for call in asked if "left early" not in call.request)
    assert {call.meta.get("temperature") for call in asked} == {_temperature(body) for path, body in provider.requests}
    assert {call.meta.get("determinism") for call in asked} == {"plan-1"}
    replayed = workplace.replay(AGENTS / "sdks" / sdk.script)
    assert replayed.stdout == recorded.stdout
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
    assert replayed.verdict["sockets_denied"] == []


def _temperature(body: object) -> object:
    """The temperature that the provider was asked for, wherever it stands."""
    if not isinstance(body, dict):
        return None
    places = [
        body,
        *(body.get(name) or {} for name in ("options", "inferenceConfig", "generationConfig", "sampling_params")),
    ]
    places.append(body.get("textGenerationConfig") or {})
    return next((place["temperature"] for place in places if "temperature" in place), None)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["aiohttp", "httpx"])
def test_u1_s26_litellm_replays_on_both_of_its_transports(
    transport: str, provider: Provider, workplace: Workplace
) -> None:
    """LiteLLM's async calls go through httpx on aiohttp or on its own: each is recorded once, and replays."""
    if not LITELLM.exists():
        pytest.skip(f"no {LITELLM}: tools/agents.sh makes it")
    environ = {
        **workplace.environ,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # without it a price list is fetched from the internet at import
        "DISABLE_AIOHTTP_TRANSPORT": str(transport == "httpx"),
        "OLLAMA_API_BASE": provider.url,  # where it asks what a model can
    }
    there = Workplace(workplace.path, environ, LITELLM)
    recorded = there.record(AGENTS / "sdks" / "litellm_agent.py")
    provider.stop()
    recording = there.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    boundaries = {"llm:ollama.chat", "llm:bedrock.converse", "llm:anthropic.messages", CHAT}
    assert {call.boundary for call in recording.calls if call.kind == "llm"} == boundaries
    assert len(recording.calls) == len(provider.requests)
    assert "together Answer" in recorded.stdout
    assert "error 400" in recorded.stdout
    replayed = there.replay(AGENTS / "sdks" / "litellm_agent.py")
    assert replayed.stdout == recorded.stdout
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
