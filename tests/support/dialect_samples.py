"""One sample of every dialect: its URL, a request, and a real server's answer, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from spanreplay.dialects import Dialect, find_dialect
from spanreplay.runtime.wire.aws_events import read_events
from support import wire_anthropic, wire_bedrock, wire_cohere, wire_engine, wire_google, wire_ollama, wire_openai
from support.wire_interactions import answer_interaction, stream_interaction
from support.wire_text import Json

FINGERPRINT: Final = "fp_1"
SYSTEM_PROMPT: Final = "be brief"
TOOL_PROMPT: Final = 'use tool pay with {"amount": 190000} and use tool note with {"text": "é"}'
_HOST: Final = "http://127.0.0.1:8000"
_TOOLS: Final = ("pay", "note")
PROFILE: Final = "arn:aws:bedrock:us-east-1:111122223333:application-inference-profile/a1b2c3"


@dataclass(frozen=True)
class Sample:
    """A dialect's requests and answers.

    `ask(prompt)` returns a body; `stream_path` is the path of streamed requests if the body doesn't say so.
    """

    path: str
    ask: Callable[[str], Json]
    answer: Callable[[Json], Json]
    stream: Callable[[Json], list[bytes]] | None = None
    stream_path: str = ""
    has_tools: bool = True
    has_system: bool = True
    has_model: bool = True
    """Whether an answer names its model."""
    url_model: str = ""
    fingerprint: str = ""
    temperature: Callable[[Json, float], Json] | None = None

    def dialect(self, *, is_stream: bool = False) -> Dialect:
        """Return the dialect detected from the URL and the body."""
        path = self.stream_path if is_stream and self.stream_path else self.path
        found = find_dialect("POST", _HOST + path, self.ask("hi"))
        assert found is not None, path
        return found

    def ask_stream(self, prompt: str = "hi") -> Json:
        """Return the body that requests a stream."""
        body = self.ask(prompt)
        return body if self.stream_path and "anthropic_version" not in body else {**body, "stream": True}

    def streamed(self, prompt: str = "hi") -> list[str]:
        """Return the texts of a stream, as the seams pass them to a dialect."""
        assert self.stream is not None
        return as_texts(self.stream(self.ask_stream(prompt)))


def as_texts(pieces: list[bytes]) -> list[str]:
    """Return pieces of a body as texts: event messages are decoded, others are text already."""
    return read_events(b"".join(pieces)) or [piece.decode() for piece in pieces]


def _said(prompt: str) -> list[Json]:
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": prompt}]


def _functions() -> list[Json]:
    return [{"type": "function", "function": {"name": name, "parameters": {}}} for name in _TOOLS]


def _flat(body: Json, value: float) -> Json:
    return {**body, "temperature": value}


def _nested(name: str) -> Callable[[Json, float], Json]:
    return lambda body, value: {**body, name: {**body.get(name, {}), "temperature": value}}


def _ask_anthropic(prompt: str) -> Json:
    tools: list[Json] = [{"name": name, "input_schema": {}} for name in _TOOLS]
    system = [{"type": "text", "text": SYSTEM_PROMPT}]
    said = [{"role": "user", "content": prompt}]
    return {"model": "claude-x", "max_tokens": 99, "system": system, "messages": said, "tools": tools}


def _ask_hosted_anthropic(prompt: str) -> Json:
    body = {k: v for k, v in _ask_anthropic(prompt).items() if k != "model"}
    return {"anthropic_version": "vertex-2023-10-16", **body}


def _ask_google(prompt: str) -> Json:
    tools: list[Json] = [{"functionDeclarations": [{"name": name} for name in _TOOLS]}]
    system = {"parts": [{"text": SYSTEM_PROMPT}]}
    return {"contents": [{"role": "user", "parts": [{"text": prompt}]}], "systemInstruction": system, "tools": tools}


def _ask_converse(prompt: str) -> Json:
    tools: list[Json] = [{"toolSpec": {"name": name, "inputSchema": {"json": {}}}} for name in _TOOLS]
    said = [{"role": "user", "content": [{"text": prompt}]}]
    return {"messages": said, "system": [{"text": SYSTEM_PROMPT}], "toolConfig": {"tools": tools}}


def _ask_cohere_v1(prompt: str) -> Json:
    tools: list[Json] = [{"name": name, "description": name, "parameter_definitions": {}} for name in _TOOLS]
    return {"model": "command-x", "message": prompt, "preamble": SYSTEM_PROMPT, "tools": tools}


CHAT: Final = Sample(
    "/v1/chat/completions",
    lambda prompt: {"model": "gpt-x", "messages": _said(prompt), "tools": _functions()},
    lambda body: wire_openai.answer_chat(body, FINGERPRINT),
    lambda body: wire_openai.stream_chat(body, FINGERPRINT),
    fingerprint=FINGERPRINT,
    temperature=_flat,
)
_CONVERSE: Final = Sample(
    "/model/us.amazon.nova-x-v1%3A0/converse",
    _ask_converse,
    wire_bedrock.answer_converse,
    wire_bedrock.stream_converse,
    "/model/us.amazon.nova-x-v1%3A0/converse-stream",
    has_model=False,
    url_model="us.amazon.nova-x-v1:0",
    temperature=_nested("inferenceConfig"),
)


def _invoke(model: str, sample: Sample, **changes: Any) -> Sample:
    return replace(
        sample,
        path=f"/model/{model}/invoke",
        stream_path=f"/model/{model}/invoke-with-response-stream",
        answer=lambda body: wire_bedrock.answer_invoke(model, body),
        stream=lambda body: wire_bedrock.stream_invoke(model, body),
        url_model=model,
        **changes,
    )


def _prompt(field: str, **more: Any) -> Callable[[str], Json]:
    return lambda prompt: {field: prompt, **more}


_TEXT: Final = Sample("", _prompt("prompt"), answer=dict, has_tools=False, has_system=False, has_model=False)

MODELS: Final[dict[str, Sample]] = {
    "openai_chat": CHAT,
    "azure_chat": replace(
        CHAT,
        path="/openai/deployments/prod/chat/completions?api-version=2024-10-21",
        answer=lambda body: wire_openai.answer_chat({**body, "model": "gpt-x"}, FINGERPRINT),
        url_model="prod",
    ),
    "openai_completions": Sample(
        "/v1/completions",
        _prompt("prompt", model="llama-x"),
        lambda body: wire_engine.answer_completions(body, FINGERPRINT),
        lambda body: wire_engine.stream_completions(body, FINGERPRINT),
        has_tools=False,
        has_system=False,
        fingerprint=FINGERPRINT,
        temperature=_flat,
    ),
    "openai_responses": Sample(
        "/v1/responses",
        lambda prompt: {
            "model": "gpt-x",
            "instructions": SYSTEM_PROMPT,
            "input": prompt,
            "tools": [{"type": "function", "name": name, "parameters": {}} for name in _TOOLS],
        },
        wire_openai.answer_responses,
        wire_openai.stream_responses,
        temperature=_flat,
    ),
    "anthropic": Sample(
        "/v1/messages",
        _ask_anthropic,
        wire_anthropic.answer_messages,
        wire_anthropic.stream_messages,
        temperature=_flat,
    ),
    "vertex_anthropic": Sample(
        "/v1/projects/p/locations/l/publishers/anthropic/models/claude-x@20260101:rawPredict",
        _ask_hosted_anthropic,
        lambda body: wire_anthropic.answer_messages({**body, "model": "claude-x"}),
        lambda body: wire_anthropic.stream_messages({**body, "model": "claude-x"}),
        "/v1/projects/p/locations/l/publishers/anthropic/models/claude-x@20260101:streamRawPredict",
        url_model="claude-x@20260101",
        temperature=_flat,
    ),
    "google": Sample(
        "/v1beta/models/gemini-x:generateContent",
        _ask_google,
        lambda body: wire_google.answer_generate("gemini-x", body),
        lambda body: wire_google.stream_generate("gemini-x", body),
        "/v1beta/models/gemini-x:streamGenerateContent?alt=sse",
        url_model="gemini-x",
        temperature=_nested("generationConfig"),
    ),
    "google_interactions": Sample(
        "/v1beta/interactions",
        lambda prompt: {
            "model": "gemini-x",
            "input": prompt,
            "system_instruction": SYSTEM_PROMPT,
            "tools": [{"type": "function", "name": name, "parameters": {}} for name in _TOOLS],
        },
        answer_interaction,
        stream_interaction,
        temperature=_nested("generation_config"),
    ),
    "writer_chat": replace(CHAT, path="/v1/chat"),
    "bedrock_converse": _CONVERSE,
    "bedrock_nova": _invoke("amazon.nova-x", _CONVERSE),
    "bedrock_anthropic": _invoke(
        "anthropic.claude-x",
        Sample("", _ask_hosted_anthropic, answer=dict, temperature=_flat),
    ),
    "bedrock_llama": _invoke(
        "meta.llama-x",
        replace(_TEXT, ask=_prompt("prompt", max_gen_len=9), temperature=_flat),
    ),
    "bedrock_titan": _invoke(
        "amazon.titan-text-x",
        replace(_TEXT, ask=_prompt("inputText"), temperature=_nested("textGenerationConfig")),
    ),
    "cohere_chat": Sample(
        "/v2/chat",
        lambda prompt: {"model": "command-x", "messages": _said(prompt), "tools": _functions()},
        wire_cohere.answer_chat,
        wire_cohere.stream_chat,
        has_model=False,
        temperature=_flat,
    ),
    "cohere_chat_v1": Sample(
        "/v1/chat",
        _ask_cohere_v1,
        wire_cohere.answer_chat_v1,
        wire_cohere.stream_chat_v1,
        has_model=False,
        temperature=_flat,
    ),
    "ollama_chat": Sample(
        "/api/chat",
        lambda prompt: {"model": "llama-x", "messages": _said(prompt), "tools": _functions()},
        wire_ollama.answer_chat,
        wire_ollama.stream_chat,
        temperature=_nested("options"),
    ),
    "ollama_generate": Sample(
        "/api/generate",
        lambda prompt: {"model": "llama-x", "prompt": prompt, "system": SYSTEM_PROMPT},
        wire_ollama.answer_generate,
        wire_ollama.stream_generate,
        has_tools=False,
        temperature=_nested("options"),
    ),
    "sglang_generate": Sample(
        "/generate",
        _prompt("text", sampling_params={"max_new_tokens": 9}),
        wire_engine.answer_generate,
        wire_engine.stream_generate,
        has_tools=False,
        has_system=False,
        has_model=False,
        temperature=_nested("sampling_params"),
    ),
}
"""Every dialect of a model that answers with text."""


def _other(path: str, body: Json, answer: Callable[[Json], Json], **more: Any) -> Sample:
    return Sample(path, lambda prompt: dict(body), answer, has_tools=False, has_system=False, **more)


_PAIRS: Final[Json] = {"model": "rank-x", "query": "which?", "documents": ["one", "two"]}
OTHERS: Final[dict[str, Sample]] = {
    "openai_embeddings": _other(
        "/v1/embeddings", {"model": "embed-x", "input": ["a", "b"]}, wire_openai.answer_embeddings
    ),
    "azure_embeddings": _other(
        "/openai/deployments/prod/embeddings",
        {"input": ["a"]},
        lambda body: wire_openai.answer_embeddings({**body, "model": "embed-x"}),
        url_model="prod",
    ),
    "google_embed": _other(
        "/v1beta/models/embed-x:batchEmbedContents",
        {"requests": [{"content": {"parts": [{"text": "a"}]}}]},
        lambda body: wire_google.answer_embeds("batchEmbedContents", body),
        url_model="embed-x",
        has_model=False,
    ),
    "vertex_embed": _other(
        "/v1/projects/p/locations/l/publishers/google/models/embed-x:predict",
        {"instances": [{"content": "a"}, {"content": "b"}]},
        lambda body: wire_google.answer_embeds("predict", body),
        url_model="embed-x",
        has_model=False,
    ),
    "cohere_embed": _other(
        "/v2/embed",
        {"model": "embed-x", "texts": ["a", "b"], "input_type": "search_query", "embedding_types": ["float"]},
        wire_cohere.answer_embed,
        has_model=False,
    ),
    "ollama_embed": _other("/api/embed", {"model": "embed-x", "input": ["a", "b"]}, wire_ollama.answer_embed),
    "bedrock_embed": _other(
        "/model/amazon.titan-embed-x/invoke",
        {"inputText": "a", "dimensions": 8},
        lambda body: wire_bedrock.answer_invoke("amazon.titan-embed-x", body),
        url_model="amazon.titan-embed-x",
        has_model=False,
    ),
    "bedrock_nova_embed": _other(
        "/model/amazon.nova-2-multimodal-embeddings-v1%3A0/invoke",
        {"taskType": "SINGLE_EMBEDDING", "singleEmbeddingParams": {"text": {"value": "a", "truncationMode": "END"}}},
        lambda body: {"embeddings": [{"embeddingType": "TEXT", "embedding": [0.1, 0.2]}]},
        url_model="amazon.nova-2-multimodal-embeddings-v1:0",
        has_model=False,
    ),
    "bedrock_embed_by_profile": _other(
        f"/model/{PROFILE.replace(':', '%3A').replace('/', '%2F')}/invoke",
        {"inputText": "a"},
        lambda body: wire_bedrock.answer_invoke("amazon.titan-embed-x", body),
        url_model=PROFILE,
        has_model=False,
    ),
    "openai_compact": _other(
        "/v1/responses/compact",
        {"model": "gpt-x", "input": [{"role": "user", "content": "hi"}]},
        lambda body: {
            "id": "resp_1",
            "object": "response.compaction",
            "output": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "compaction", "id": "cmp_1", "encrypted_content": "c2VjcmV0"},
            ],
            "usage": {"input_tokens": 90, "output_tokens": 10, "total_tokens": 100},
        },
        has_model=False,
    ),
    "openai_input_tokens": _other(
        "/v1/responses/input_tokens",
        {"model": "gpt-x", "input": "hi"},
        lambda body: {"object": "response.input_tokens", "input_tokens": 7},
        has_model=False,
    ),
    "anthropic_count_tokens": _other(
        "/v1/messages/count_tokens",
        {"model": "claude-x", "messages": [{"role": "user", "content": "hi"}]},
        lambda body: {"input_tokens": 7},
        has_model=False,
    ),
    "cohere_rerank": _other("/v2/rerank", _PAIRS, wire_cohere.answer_rerank, has_model=False),
    "vllm_rerank": _other("/rerank", _PAIRS, wire_engine.answer_rerank),
    "vllm_score": _other(
        "/v1/score", {"model": "rank-x", "text_1": "which?", "text_2": ["one", "two"]}, wire_engine.answer_score
    ),
    "vllm_tokenize": _other(
        "/tokenize", {"model": "llama-x", "prompt": "hi"}, wire_engine.answer_tokenize, has_model=False
    ),
    "vllm_detokenize": _other(
        "/detokenize", {"model": "llama-x", "tokens": [1, 2]}, wire_engine.answer_detokenize, has_model=False
    ),
}
EVERY: Final[dict[str, Sample]] = {**MODELS, **OTHERS}


def whole_text(sample: Sample, prompt: str = "hi") -> tuple[Json, str]:
    """Return an answer and its JSON text."""
    answer = sample.answer(sample.ask(prompt))
    return answer, json.dumps(answer)
