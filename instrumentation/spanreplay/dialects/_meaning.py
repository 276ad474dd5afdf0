"""The values that a dialect reads from a request and its response."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

__all__ = ["Message", "RequestMeaning", "ResponseMeaning", "ToolCall", "meta"]


class ToolCall(NamedTuple):
    """A tool call as the model sent it; `arguments` is JSON text, possibly invalid."""

    id: str
    name: str
    arguments: str


class Message(NamedTuple):
    """One input or output message, in OpenInference's terms."""

    role: str
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    image_urls: tuple[str, ...] = ()


class RequestMeaning(NamedTuple):
    """A request to a model.

    `key_fields` goes to `compute_key` with `keyspec`; `ignored` names the fields that the key excludes;
    `tool_call_ids` are the calls whose results this request contains.
    """

    kind: str
    name: str
    effect: str
    keyspec: str
    key_fields: Mapping[str, Any]
    ignored: tuple[str, ...] = ()
    model: str = ""
    parameters: Mapping[str, Any] = MappingProxyType({})
    provider: str = ""
    is_stream: bool = False
    system_prompt_hash: str = ""
    tool_call_ids: tuple[str, ...] = ()


class ResponseMeaning(NamedTuple):
    """A response, possibly partial: for a truncated stream, `is_complete` is False.

    `text`, `tool_calls` and `finish_reason` are the first choice's; `messages` has all choices. `error` is
    empty on success. Token counts are -1 if the provider stated none; `tokens_in` includes cached ones.
    """

    model: str = ""
    fingerprint: str = ""
    response_id: str = ""
    tokens_in: int = -1
    tokens_out: int = -1
    tokens_cache_read: int = -1
    tokens_cache_write: int = -1
    tokens_reasoning: int = -1
    finish_reason: str = ""
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    error: str = ""
    is_complete: bool = True
    messages: tuple[Message, ...] = ()
    scores: tuple[tuple[int, float], ...] = ()
    """A reranker's results: (document index, relevance score)."""


_PARAMETERS: Final = {
    "temperature": ("temperature",),
    "top_p": ("top_p", "topP", "p"),
    "seed": ("seed", "random_seed"),
    "max_tokens": (
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "maxOutputTokens",
        "maxTokens",
        "max_new_tokens",
        "max_gen_len",
        "maxTokenCount",
        "num_predict",
    ),
}
_SPELLINGS: Final = frozenset(spelling for spellings in _PARAMETERS.values() for spelling in spellings)
_HASH_BYTES: Final = 16


def output_hash(response: ResponseMeaning) -> str:
    """Return a hash of an answer's texts, tool calls and scores; '' if it is truncated, an error or empty.

    Ids, times and usage are excluded, because a provider generates them for each answer.
    """
    said = response.messages or (Message("", response.text, response.tool_calls),)
    if response.error or not response.is_complete:
        return ""
    is_empty = not response.scores
    texts: list[str] = []
    for message in said:
        is_empty = is_empty and not (message.text or message.tool_calls or message.image_urls)
        texts += ("message", message.text)
        for call in message.tool_calls:
            texts += ("call", call.name, call.arguments)
        texts += message.image_urls
    if is_empty:
        return ""
    texts.append(repr(response.scores))
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    return hashlib.blake2b(
        b"".join([b"%d:%b" % (len(part), part) for part in parts]), digest_size=_HASH_BYTES
    ).hexdigest()


def meta(request: RequestMeaning, response: ResponseMeaning | None = None) -> dict[str, str | int | float | bool]:
    """Return the values for `CallRecord.meta`, without unknown ones."""
    found: dict[str, Any] = {
        "model": request.model,
        "provider": request.provider,
        "system_prompt_hash": request.system_prompt_hash,
    }
    parameters = request.parameters
    if not parameters.keys().isdisjoint(_SPELLINGS):
        for name, spellings in _PARAMETERS.items():
            values = [parameters.get(spelling) for spelling in spellings]
            found[name] = next((v for v in values if isinstance(v, (int, float))), None)
    if response is not None:
        found["response_model"] = response.model
        found["fingerprint"] = response.fingerprint
        found["finish_reason"] = response.finish_reason
        found["output_hash"] = output_hash(response)
        found["tokens_in"] = response.tokens_in if response.tokens_in >= 0 else None
        found["tokens_out"] = response.tokens_out if response.tokens_out >= 0 else None
    known = {k: v for k, v in found.items() if v is not None and v != ""}
    known["stream"] = request.is_stream
    return known
