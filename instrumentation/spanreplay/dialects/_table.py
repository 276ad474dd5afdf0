"""The table of dialects: one row per protocol, imported when its path is first seen."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import RequestMeaning, ResponseMeaning

__all__ = ["ROWS", "Exchange", "find_dialect", "load", "read_realtime"]

_INVOKE: Final = "/model/*/invoke /model/*/invoke-with-response-stream"
_PREDICT: Final = ":rawPredict :streamRawPredict"

# (suffixes of the path, * for one segment, module in spanreplay.dialects, class); if several rows match a path, the
# first that accepts the body wins
ROWS: Final = (
    ("/chat/completions /agents/completions", "openai.chat", "OpenAIChat"),
    ("/completions", "openai.completions", "OpenAICompletions"),
    ("/responses", "openai.responses", "OpenAIResponses"),
    ("/responses/compact", "openai.compact", "OpenAICompact"),
    ("/responses/input_tokens", "openai.input_tokens", "OpenAIInputTokens"),
    ("/embeddings", "openai.embeddings", "OpenAIEmbeddings"),
    ("/v1/messages", "anthropic_messages", "AnthropicMessages"),
    ("/v1/messages/count_tokens", "anthropic_count_tokens", "AnthropicCountTokens"),
    (":generateContent :streamGenerateContent", "google.generate", "GoogleGenerate"),
    ("/interactions", "google.interactions", "GoogleInteractions"),
    (":embedContent :batchEmbedContents :predict", "google.embed", "GoogleEmbed"),
    (_PREDICT, "anthropic_messages", "AnthropicMessages"),
    (_PREDICT, "openai.chat", "OpenAIChat"),
    ("/model/*/converse /model/*/converse-stream", "bedrock.converse", "BedrockConverse"),
    (_INVOKE, "anthropic_messages", "AnthropicMessages"),
    (_INVOKE, "bedrock.nova", "BedrockNova"),
    (_INVOKE, "bedrock.text", "BedrockText"),
    (_INVOKE, "bedrock.embed", "BedrockEmbed"),
    (_INVOKE, "cohere.chat_v1", "CohereChatV1"),
    (_INVOKE, "openai.chat", "OpenAIChat"),
    ("/v2/chat", "cohere.chat", "CohereChat"),
    ("/v1/chat", "cohere.chat_v1", "CohereChatV1"),
    ("/v1/chat", "writer_chat", "WriterChat"),
    ("/v1/embed /v2/embed", "cohere.embed", "CohereEmbed"),
    ("/api/chat", "ollama.chat", "OllamaChat"),
    ("/api/generate", "ollama.generate", "OllamaGenerate"),
    ("/api/embed /api/embeddings", "ollama.embed", "OllamaEmbed"),
    ("/generate", "sglang_generate", "SGLangGenerate"),
    ("/tokenize /detokenize", "vllm_tokenize", "VllmTokenize"),
    ("/rerank /score", "rerank", "Rerank"),
)
# (suffix of a websocket's path, module in spanreplay.dialects whose `Session` reads it)
_WEBSOCKETS: Final = (
    ("/realtime", "openai.realtime"),
    ("BidiGenerateContent", "google.live"),
    ("BidiGenerateContentConstrained", "google.live"),
)
_TAIL: Final = re.compile(r"[^/:]*$")


def _index() -> dict[str, list[tuple[re.Pattern[str], str, str]]]:
    """Index rows by the last word of their paths: one lookup rules out most requests that go to no model."""
    found: dict[str, list[tuple[re.Pattern[str], str, str]]] = {}
    for ends, module, class_name in ROWS:
        for end in ends.split():
            pattern = re.compile(re.escape(end).replace(r"\*", "[^/]+") + "$")
            found.setdefault(_tail(end), []).append((pattern, module, class_name))
    return found


def _tail(path: str) -> str:
    found = _TAIL.search(path)
    return found[0] if found is not None else ""


_BY_TAIL: Final = _index()

# (suffix of the host name, OpenInference's name of the provider)
_PROVIDERS: Final = (
    ("openai.azure.com", "azure"),
    ("services.ai.azure.com", "azure"),
    ("cognitiveservices.azure.com", "azure"),
    ("openai.com", "openai"),
    ("anthropic.com", "anthropic"),
    ("mistral.ai", "mistralai"),
    ("cohere.com", "cohere"),
    ("cohere.ai", "cohere"),
    ("groq.com", "groq"),
    ("deepseek.com", "deepseek"),
    ("x.ai", "xai"),
    ("openrouter.ai", "openrouter"),
    ("googleapis.com", "google"),
    ("together.xyz", "together"),
    ("together.ai", "together"),
    ("fireworks.ai", "fireworks"),
    ("cerebras.ai", "cerebras"),
    ("perplexity.ai", "perplexity"),
    ("voyageai.com", "voyageai"),
    ("jina.ai", "jina"),
    ("ollama.com", "ollama"),
    ("amazonaws.com", "aws"),
    ("writer.com", "writer"),
    ("snowflakecomputing.com", "snowflake"),
)
# Azure: …/deployments/NAME/…; Bedrock: …/model/NAME/…; Google: …/models/NAME:method, …/endpoints/NAME:method
_MODEL: Final = re.compile(
    r"/deployments/([^/]+)/|/model/([^/]+)/[\w-]+$|/(?:models|tunedModels|endpoints)/([^/:]+):\w+$"
)
# Methods whose name states whether the answer is a stream
_METHOD: Final = re.compile(
    r"(/converse|/invoke|:generateContent|:rawPredict)$"
    r"|(/converse-stream|/invoke-with-response-stream|:streamGenerateContent|:streamRawPredict)$"
)
_UNREAD: Final = object()


class Exchange(NamedTuple):
    """A websocket conversation and its meaning; `body` is its input in the form of one request."""

    dialect: Dialect
    body: dict[str, Any]
    request: RequestMeaning
    response: ResponseMeaning


def find_dialect(method: str, url: str, body: Any = _UNREAD) -> Dialect | None:
    """Return the dialect of a request, or None if it is kind `http`.

    Pass the parsed body if it is known: a path such as /responses alone doesn't identify an LLM call.
    """
    for dialect in _find_by_path(method.upper(), url):
        if body is _UNREAD or dialect.accepts(body):
            return dialect
    return None


@lru_cache(maxsize=512)
def _find_by_path(method: str, url: str) -> tuple[Dialect, ...]:
    if method != "POST":
        return ()
    try:
        parts = urlsplit(url)
    except ValueError:
        return ()
    path = parts.path.rstrip("/")
    return tuple(
        _bind(load(module, class_name), path, parts.hostname or "")
        for end, module, class_name in _BY_TAIL.get(_tail(path), ())
        if end.search(path)
    )


def read_realtime(url: str, events: Iterable[tuple[bool, Any]]) -> Exchange | None:
    """Read a model's websocket conversation from (was sent, stored message); None if the URL is not a model's."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    path = parts.path.rstrip("/")
    module = next((module for end, module in _WEBSOCKETS if path.endswith(end)), "")
    if not module:
        return None
    session_class: Any = importlib.import_module(f"spanreplay.dialects.{module}").Session
    dialect = session_class.dialect(_find_provider(parts.hostname or "") or session_class.dialect.system)
    session = session_class(url).read(events)
    return Exchange(dialect, session.body, dialect.read_request(session.body), session.answer(dialect))


def load(module: str, class_name: str) -> type[Dialect]:
    """Import the class of a row."""
    found: type[Dialect] = getattr(importlib.import_module(f"spanreplay.dialects.{module}"), class_name)
    return found


def _bind(cls: type[Dialect], path: str, host: str) -> Dialect:
    model, method = _MODEL.search(path), _METHOD.search(path)
    return cls(
        _find_provider(host) or cls.system,
        unquote(next(filter(None, model.groups()))) if model else "",
        None if method is None else method[2] is not None,
    )


def _find_provider(host: str) -> str:
    for end, provider in _PROVIDERS:
        if host == end or host.endswith(f".{end}"):
            return provider
    return ""
