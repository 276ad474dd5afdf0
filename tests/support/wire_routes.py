"""Paths of the local provider and their protocols, beside OpenAI's, Anthropic's and Google's own paths."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from support import wire_anthropic, wire_bedrock, wire_cohere, wire_engine, wire_google, wire_ollama, wire_openai
from support.wire_interactions import answer_interaction, stream_interaction
from support.wire_text import Json

SSE: Final = "text/event-stream; charset=utf-8"
LINES: Final = "application/x-ndjson"
COHERE_LINES: Final = "application/stream+json"


@dataclass(frozen=True)
class Route:
    """How to answer one request: a JSON object or, if `content_type` is set, the pieces of a stream."""

    make: Callable[[], Any]
    content_type: str = ""


def find_route(path: str, body: Json, fingerprint: str) -> Route | None:
    """Return the route of a path without its query."""
    for pattern, choose in _ROUTES:
        match = pattern.fullmatch(path)
        if match is not None:
            return choose([unquote(part) for part in match.groups()], body, fingerprint)
    return None


def _either(whole: Callable[[], Any], stream: Callable[[], Any], content_type: str, *, is_stream: bool) -> Route:
    return Route(stream, content_type) if is_stream else Route(whole)


def _openai(parts: list[str], body: Json, fingerprint: str) -> Route:
    deployment, method = parts
    body = {**body, "model": deployment}
    if method == "embeddings":
        return Route(partial(wire_openai.answer_embeddings, body))
    whole = partial(wire_openai.answer_chat, body, fingerprint)
    stream = partial(wire_openai.stream_chat, body, fingerprint)
    return _either(whole, stream, SSE, is_stream=bool(body.get("stream")))


def _completions(parts: list[str], body: Json, fingerprint: str) -> Route:
    whole = partial(wire_engine.answer_completions, body, fingerprint)
    stream = partial(wire_engine.stream_completions, body, fingerprint)
    return _either(whole, stream, SSE, is_stream=bool(body.get("stream")))


def _sglang(parts: list[str], body: Json, fingerprint: str) -> Route:
    whole, stream = partial(wire_engine.answer_generate, body), partial(wire_engine.stream_generate, body)
    return _either(whole, stream, SSE, is_stream=bool(body.get("stream")))


def _converse(parts: list[str], body: Json, fingerprint: str) -> Route:
    whole, stream = partial(wire_bedrock.answer_converse, body), partial(wire_bedrock.stream_converse, body)
    return _either(whole, stream, wire_bedrock.EVENT_STREAM, is_stream=parts[1] == "converse-stream")


def _invoke(parts: list[str], body: Json, fingerprint: str) -> Route:
    whole = partial(wire_bedrock.answer_invoke, parts[0], body)
    stream = partial(wire_bedrock.stream_invoke, parts[0], body)
    return _either(whole, stream, wire_bedrock.EVENT_STREAM, is_stream=parts[1] != "invoke")


def _vertex_anthropic(parts: list[str], body: Json, fingerprint: str) -> Route:
    body = {**body, "model": parts[0]}
    whole, stream = partial(wire_anthropic.answer_messages, body), partial(wire_anthropic.stream_messages, body)
    return _either(whole, stream, SSE, is_stream=parts[1] == "streamRawPredict")


def _cohere(parts: list[str], body: Json, fingerprint: str) -> Route:
    whole, stream, kind = wire_cohere.answer_chat, wire_cohere.stream_chat, SSE
    if parts[0] == "1":
        whole, stream, kind = wire_cohere.answer_chat_v1, wire_cohere.stream_chat_v1, COHERE_LINES
    return _either(partial(whole, body), partial(stream, body), kind, is_stream=bool(body.get("stream")))


def _ollama(parts: list[str], body: Json, fingerprint: str) -> Route:
    if parts[0] == "embed":
        return Route(partial(wire_ollama.answer_embed, body))
    whole, stream = wire_ollama.answer_generate, wire_ollama.stream_generate
    if parts[0] == "chat":
        whole, stream = wire_ollama.answer_chat, wire_ollama.stream_chat
    return _either(partial(whole, body), partial(stream, body), LINES, is_stream=body.get("stream", True))


def _simple(make: Callable[[Json], Json]) -> Callable[[list[str], Json, str], Route]:
    return lambda parts, body, fingerprint: Route(partial(make, body))


def _interaction(parts: list[str], body: Json, fingerprint: str) -> Route:
    whole, stream = partial(answer_interaction, body), partial(stream_interaction, body)
    return _either(whole, stream, SSE, is_stream=bool(body.get("stream")))


def _google_embed(parts: list[str], body: Json, fingerprint: str) -> Route:
    return Route(partial(wire_google.answer_embeds, parts[0], body))


_ROUTES: Final = tuple(
    (re.compile(pattern), choose)
    for pattern, choose in (
        (r"/openai/deployments/([^/]+)/(chat/completions|embeddings)", _openai),
        (r"(?:/[\w/]*)?/v1/completions", _completions),
        (r"/v1/fim/completions", _completions),
        (r"/generate", _sglang),
        (r"/tokenize", _simple(wire_engine.answer_tokenize)),
        (r"/detokenize", _simple(wire_engine.answer_detokenize)),
        (r"/rerank", _simple(wire_engine.answer_rerank)),
        (r"(?:/v1)?/score", _simple(wire_engine.answer_score)),
        (r"/model/([^/]+)/(converse|converse-stream)", _converse),
        (r"/model/([^/]+)/(invoke|invoke-with-response-stream)", _invoke),
        (r"/.*/publishers/anthropic/models/([^/:]+):(rawPredict|streamRawPredict)", _vertex_anthropic),
        (r"/.*/models/[^/:]+:(embedContent|batchEmbedContents|predict)", _google_embed),
        (r"/v([12])/chat", _cohere),
        (r"/v1beta/interactions", _interaction),
        (r"/v1/responses/compact", _simple(wire_openai.answer_compact)),
        (r"/v1/responses/input_tokens", _simple(wire_openai.answer_input_tokens)),
        (r"/v[12]/embed", _simple(wire_cohere.answer_embed)),
        (r"/v[12]/rerank", _simple(wire_cohere.answer_rerank)),
        (r"/api/(chat|generate|embed)", _ollama),
    )
)
