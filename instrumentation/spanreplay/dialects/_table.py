"""The dialects' table: one row per protocol, imported when its path is first seen."""

from __future__ import annotations

import importlib
import re
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from spanreplay.dialects._base import Dialect

__all__ = ["find_dialect"]

# (path suffix, module, class)
_ROWS: Final = (
    ("/chat/completions", "spanreplay.dialects.openai_chat", "OpenAIChat"),
    ("/responses", "spanreplay.dialects.openai_responses", "OpenAIResponses"),
    ("/embeddings", "spanreplay.dialects.openai_embeddings", "OpenAIEmbeddings"),
    ("/v1/messages", "spanreplay.dialects.anthropic_messages", "AnthropicMessages"),
    (":generateContent", "spanreplay.dialects.google_generate", "GoogleGenerate"),
    (":streamGenerateContent", "spanreplay.dialects.google_generate", "GoogleStream"),
)

# (end of the host name, OpenInference's name of the provider)
_PROVIDERS: Final = (
    ("openai.azure.com", "azure"),
    ("services.ai.azure.com", "azure"),
    ("cognitiveservices.azure.com", "azure"),
    ("openai.com", "openai"),
    ("anthropic.com", "anthropic"),
    ("mistral.ai", "mistralai"),
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
    ("amazonaws.com", "aws"),
)
# Azure: …/deployments/NAME/chat/completions; Google: …/models/NAME:generateContent, …/endpoints/NAME:generateContent
_MODEL: Final = re.compile(r"/deployments/([^/]+)/|/(?:models|tunedModels|endpoints)/([^/:]+):\w+$")
_UNREAD: Final = object()


def find_dialect(method: str, url: str, body: Any = _UNREAD) -> Dialect | None:
    """The protocol that a request speaks, or None: then it is kind `http`.

    Pass the parsed body where it is known: a path such as /responses alone does not make an LLM call.
    """
    dialect = _find_by_path(method.upper(), url)
    if dialect is None or (body is not _UNREAD and not dialect.accepts(body)):
        return None
    return dialect


@lru_cache(maxsize=512)
def _find_by_path(method: str, url: str) -> Dialect | None:
    if method != "POST":
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    path = parts.path.rstrip("/")
    for suffix, module, class_name in _ROWS:
        if path.endswith(suffix):
            cls: type[Dialect] = getattr(importlib.import_module(module), class_name)
            model = _MODEL.search(path)
            provider = _find_provider(parts.hostname or "") or cls.system
            return cls(provider, unquote(model[1] or model[2]) if model else "")
    return None


def _find_provider(host: str) -> str:
    for end, provider in _PROVIDERS:
        if host == end or host.endswith(f".{end}"):
            return provider
    return ""
