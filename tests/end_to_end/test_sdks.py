"""Unmodified agents on the SDKs of other providers are recorded, and replay byte for byte with the provider gone."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass

import pytest

from spanreplay.dialects import find_dialect
from spanreplay.model.call import CallRecord, Recording
from spanreplay.runtime.wire.http_reply import stored_texts
from support.agents import AGENTS, LITELLM, PYTHONS
from support.provider import Provider
from support.replaying import Workplace


@dataclass(frozen=True)
class Sdk:
    """An SDK: its module, its agent, and the boundaries that the agent uses."""

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
        ("converse chunk {'contentBlockDelta'", "error {'Message': ", "left {'messageStart'", "throttled {'Error': "),
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
@pytest.mark.sampled(4)
def test_u1_s22_s26_s58_sdk_replays_byte_for_byte(sdk: Sdk, provider: Provider, workplace: Workplace) -> None:
    """Answers, chunks, tool calls, errors and concurrent calls are as recorded, each with its own call kind."""
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
    answered = _assert_envelopes(sdk, provider, recording)
    assert {call.meta.get("temperature") for call in answered} == {_temperature(body) for _, body in provider.requests}
    assert {call.meta.get("determinism") for call in answered} == {"plan-1"}
    replayed = workplace.replay(AGENTS / "sdks" / sdk.script)
    assert replayed.stdout == recorded.stdout
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
    assert replayed.verdict["sockets_denied"] == []


def _assert_envelopes(sdk: Sdk, provider: Provider, recording: Recording) -> list[CallRecord]:
    """Assert that every model call holds sender, request and answer as on the wire; return the answered ones."""
    sent = [body for _, body in provider.requests]
    answered = []
    for call in recording.calls:
        if call.kind == "http":
            continue
        assert recording.root.start_ns <= call.start_ns <= call.end_ns <= recording.root.end_ns
        assert (call.run_id, call.trace_id) == (recording.run_id, recording.root.trace_id)
        assert sdk.script in call.code
        assert (len(call.key), call.keyspec.endswith("/1")) == (64, True)
        request, response = json.loads(call.request), json.loads(call.response)
        assert request["body"] in sent
        dialect = find_dialect(request["method"], request["url"], request["body"])
        assert dialect is not None
        meaning = dialect.read_response(response["status"], stored_texts(response["chunks"]), bool(call.meta["stream"]))
        if "throttled" in call.request:
            assert call.meta["error"] == "throttlingException: slow down"
        is_cut = any(word in call.request for word in ("left early", "throttled", "drop connection"))
        assert bool(meaning.error) == (call.outcome == "error") or is_cut
        assert meaning.is_complete != (call.outcome == "error" or is_cut) or meaning.error
        if call.kind == "llm" and call.outcome == "ok":
            assert meaning.text or meaning.tool_calls or is_cut
            assert call.meta.get("finish_reason", "") == meaning.finish_reason
            assert is_cut or meaning.finish_reason
            assert call.meta["provider"] == dialect.system
            assert call.meta.get("model") or call.name == "sglang.generate"  # one engine, one model
            answered.append(call)
    return answered


def _temperature(body: object) -> object:
    """The temperature in the request to the provider, wherever it is."""
    if not isinstance(body, dict):
        return None
    places = [
        body,
        *(body.get(name) or {} for name in ("options", "inferenceConfig", "generationConfig", "sampling_params")),
    ]
    places.append(body.get("textGenerationConfig") or {})
    return next((place["temperature"] for place in places if "temperature" in place), None)


@pytest.mark.slow
@pytest.mark.parametrize("generation", ["openai2", "old"])
@pytest.mark.sampled(1)
def test_u1_s26_azure_replays_on_older_sdks(generation: str, provider: Provider, workplace: Workplace) -> None:
    """Azure's client of each generation of OpenAI's SDK replays byte for byte."""
    python = PYTHONS[generation]
    if not python.exists():
        pytest.skip(f"no {python}: tools/agents.sh makes it")
    there = Workplace(workplace.path, workplace.environ, python)
    recorded = there.record(AGENTS / "sdks" / "azure_agent.py")
    provider.stop()
    assert "error 429" in recorded.stdout
    assert {c.boundary for c in there.recording().calls} == SDKS["azure"].boundaries
    replayed = there.replay(AGENTS / "sdks" / "azure_agent.py")
    assert replayed.stdout == recorded.stdout
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["aiohttp", "httpx"])
@pytest.mark.sampled(1)
def test_u1_s26_litellm_replays_on_both_of_its_transports(
    transport: str, provider: Provider, workplace: Workplace
) -> None:
    """LiteLLM's async calls go through httpx on aiohttp or on its own transport: each is recorded once, and replays."""
    if not LITELLM.exists():
        pytest.skip(f"no {LITELLM}: tools/agents.sh makes it")
    environ = {
        **workplace.environ,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # without it, LiteLLM downloads a price list at import
        "DISABLE_AIOHTTP_TRANSPORT": str(transport == "httpx"),
        "OLLAMA_API_BASE": provider.url,  # where it looks up a model's capabilities
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
