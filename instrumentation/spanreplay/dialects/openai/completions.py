"""OpenAI's legacy completions: a prompt in, texts out; vLLM, SGLang, llama.cpp, Mistral's fill-in-the-middle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from spanreplay.dialects._meaning import Message, ResponseMeaning
from spanreplay.dialects._wire import as_dict, as_str, to_json
from spanreplay.dialects.openai.chat import OpenAIChat

__all__ = ["OpenAICompletions"]


class OpenAICompletions(OpenAIChat):
    """POST …/completions: choices as in a chat, but with texts instead of messages."""

    name: ClassVar[str] = "openai.completions"
    keyspec: ClassVar[str] = "openai_completions/1"
    content_fields: ClassVar[frozenset[str]] = frozenset({"model", "prompt", "suffix", "prompt_embeds"})

    def accepts(self, body: Any) -> bool:
        """A request has a prompt and names a model."""
        fields = as_dict(body)
        has_prompt = isinstance(fields.get("prompt"), str | list) or "prompt_embeds" in fields
        return has_prompt and (isinstance(fields.get("model"), str) or bool(self.url_model))

    def read_system(self, body: Mapping[str, Any]) -> list[str]:
        """Return nothing: a prompt is one text."""
        return []

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The prompts, texts or token lists."""
        prompt = body.get("prompt")
        if isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int)):
            return prompt
        return [] if prompt is None else [prompt]

    def read_message(self, item: Any) -> list[Message]:
        """A prompt is a user message."""
        return [Message("user", as_str(item) or to_json(item))]

    def read_result_ids(self, body: Mapping[str, Any]) -> list[str]:
        """Return nothing: there are no tools."""
        return []

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read a completion, or the chunks of one; Writer's chunks are `{"value": …}` and have no finish reason."""
        found = super().fold([_with_choice(document) for document in documents], is_stream)
        has_ended = not is_stream or any(document.get("type") == "[DONE]" for document in documents)
        return found._replace(is_complete=found.is_complete or (has_ended and bool(found.messages)))

    def tool_schemas(self, body: Mapping[str, Any]) -> list[Any]:
        """Return nothing: there are no tools."""
        return []


def _with_choice(document: dict[str, Any]) -> dict[str, Any]:
    value = document.get("value")
    if not isinstance(value, str) or "choices" in document:
        return document
    return {**document, "choices": [{"index": 0, "text": value}]}
