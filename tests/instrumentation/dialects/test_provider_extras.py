"""What providers put beside or into the protocols that they share."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spanreplay.dialects import Dialect, find_dialect
from spanreplay.seams.aws_events import read_events
from support.dialect_samples import MODELS
from support.wire_bedrock import aws_event
from support.wire_openai import sse


def _find(path: str, host: str = "http://127.0.0.1", body: Any = None) -> Dialect:
    found = find_dialect("POST", host + path) if body is None else find_dialect("POST", host + path, body)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("https://api.deepseek.com/chat/completions", "deepseek"),
        ("https://api.x.ai/v1/chat/completions", "xai"),
        ("https://api.together.xyz/v1/chat/completions", "together"),
        ("https://openrouter.ai/api/v1/chat/completions", "openrouter"),
        ("https://api.fireworks.ai/inference/v1/chat/completions", "fireworks"),
        ("https://x.services.ai.azure.com/models/chat/completions?api-version=1", "azure"),
        ("https://x.openai.azure.com/openai/v1/chat/completions", "azure"),
        ("https://l-aiplatform.googleapis.com/v1/projects/p/locations/l/endpoints/openapi/chat/completions", "google"),
        ("https://generativelanguage.googleapis.com/v1beta/openai/chat/completions", "google"),
        ("https://llm.example.test/proxy/v1/chat/completions", "openai"),
        ("https://api.voyageai.com/v1/embeddings", "voyageai"),
        ("https://api.jina.ai/v1/rerank", "jina"),
        ("https://api.cohere.com/v2/chat", "cohere"),
        ("https://bedrock-runtime.us-east-1.amazonaws.com/model/m/converse", "aws"),
        ("https://bedrock-runtime.us-east-1.amazonaws.com/model/m/invoke", "aws"),
    ],
)
def test_host_names_the_provider_and_the_path_the_protocol(url: str, provider: str) -> None:
    """Compatible hosts need no row of their own: an unknown one with a known path is understood."""
    dialect = find_dialect("POST", url)
    assert dialect is not None
    assert dialect.provider == provider


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"prompt": "a picture of a cat"}),
        ("/score", {"player": 1}),
        ("/model/m/invoke", {"anything": 1}),
        ("/models/imagen-x:predict", {"instances": [{"prompt": "a cat"}]}),
        ("/api/generate", {"model": "llama-x"}),
        ("/v1/chat", {"messages": []}),
        ("/completions", {"done": True}),
        ("/agent/invoke", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_another_service_on_a_like_path_is_plain_http(path: str, body: Any) -> None:
    """A path alone makes no model: the body has to be one for it."""
    assert find_dialect("POST", f"http://service.test{path}", body) is None


def test_azure_filter_results_are_read_over() -> None:
    """Azure's first chunk has no choice, its others carry filter results; a filtered answer says so."""
    dialect = _find("/openai/deployments/prod/chat/completions")
    head = {"id": "c", "model": "gpt-x-2026-10-01", "system_fingerprint": "fp"}
    safe = {"hate": {"filtered": False, "severity": "safe"}}
    events = [
        {"id": "", "model": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
        {**head, "choices": [{"index": 0, "delta": {"content": "half "}, "content_filter_results": safe}]},
        {**head, "choices": [{"index": 0, "delta": {}, "content_filter_offsets": {"check_offset": 1}}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "content_filter"}]},
    ]
    meaning = dialect.read_response(200, [sse(event).decode() for event in events], True)
    assert (meaning.text, meaning.finish_reason, meaning.is_complete) == ("half ", "content_filter", True)
    assert (meaning.model, meaning.fingerprint) == ("gpt-x-2026-10-01", "fp")


@pytest.mark.parametrize("name", ["ollama_chat", "ollama_generate"])
def test_s22_ollama_streams_unless_told_otherwise(name: str) -> None:
    """A request that says nothing of streaming asks for a stream; only `false` does not."""
    dialect, body = MODELS[name].dialect(), MODELS[name].ask("hi")
    assert "stream" not in body
    assert dialect.read_request(body).is_stream
    assert not dialect.read_request({**body, "stream": False}).is_stream


def test_groq_states_the_usage_of_a_stream_in_its_own_field() -> None:
    """Tokens are counted from `x_groq`."""
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = {"usage": {"prompt_tokens": 5, "completion_tokens": 7}}
    meaning = _find("/openai/v1/chat/completions").read_response(200, [sse({**last, "x_groq": usage}).decode()], True)
    assert (meaning.tokens_in, meaning.tokens_out) == (5, 7)


def test_reasoning_is_no_part_of_the_answer() -> None:
    """What a model thinks aloud, by any of its names, is not what it said."""
    for name in ("reasoning_content", "reasoning", "thinking"):
        message = {"role": "assistant", "content": "so", name: "let me think"}
        answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop", "prompt_logprobs": [None]}]}
        assert _find("/v1/chat/completions").read_response(200, [json.dumps(answer)]).text == "so"
    mistral = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "so"}]
    answer = {"choices": [{"index": 0, "message": {"content": mistral}, "finish_reason": "stop"}]}
    assert _find("/v1/chat/completions").read_response(200, [json.dumps(answer)]).text == "so"
    cohere = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}]
    answer = {"message": {"content": cohere}, "finish_reason": "COMPLETE"}  # type: ignore[dict-item]  # another shape
    assert _find("/v2/chat").read_response(200, [json.dumps(answer)]).text == "so"


def test_bedrock_exception_within_a_stream_is_read() -> None:
    """An exception message after some text makes the answer an error, and keeps the text."""
    sample = MODELS["bedrock_converse"]
    assert sample.stream is not None
    pieces = sample.stream(sample.ask("hi"))[:6]
    pieces.append(aws_event("throttlingException", b'{"message":"slow down"}', "exception"))
    meaning = sample.dialect(is_stream=True).read_response(200, read_events(b"".join(pieces)), True)
    assert (meaning.error, meaning.is_complete) == ("throttlingException: slow down", False)
    assert meaning.text.startswith("Answer")


def test_voyage_states_only_the_total_of_tokens() -> None:
    """An embedding's total is what went in."""
    answer = {"object": "list", "data": [], "model": "voyage-x", "usage": {"total_tokens": 9}}
    assert _find("/v1/embeddings").read_response(200, [json.dumps(answer)]).tokens_in == 9


def test_scores_of_every_provider_are_read() -> None:
    """Cohere, Jina and vLLM say results, Voyage data, TEI a bare list."""
    rows = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]
    bare = [{"index": 1, "score": 0.9}, {"index": 0, "score": 0.1}]
    for answer in ({"results": rows}, {"data": rows}, bare):
        assert _find("/rerank").read_response(200, [json.dumps(answer)]).scores == ((1, 0.9), (0, 0.1))
