"""Completion of one prompt in Bedrock's InvokeModel: Llama, Titan Text, Mistral, DeepSeek, AI21, Command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import Message, ResponseMeaning
from spanreplay.dialects._wire import as_dict, as_dicts, as_int, as_str

__all__ = ["BedrockText"]


class BedrockText(Dialect):
    """POST …/model/MODEL/invoke with `prompt`, or with Titan's `inputText`."""

    name: ClassVar[str] = "bedrock.text"
    keyspec: ClassVar[str] = "bedrock_text/1"
    system: ClassVar[str] = "amazon"
    content_fields: ClassVar[frozenset[str]] = frozenset({"model", "prompt", "inputText", "images"})
    nested_parameters: ClassVar[tuple[str, ...]] = ("textGenerationConfig",)

    def accepts(self, body: Any) -> bool:
        """A request has a prompt; Titan embeddings also use `inputText`.

        If an ARN hides the model, `inputText` counts as a prompt only with a `textGenerationConfig`.
        """
        fields = as_dict(body)
        if isinstance(fields.get("inputText"), str):
            if "textGenerationConfig" in fields:
                return True
            is_other = "embed" in self.url_model or bool({"dimensions", "embeddingConfig"} & fields.keys())
            is_opaque = self.url_model.startswith("arn:") and "titan" not in self.url_model
            return not is_other and not is_opaque
        return isinstance(fields.get("prompt"), str)

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The prompt."""
        prompt = as_str(body.get("prompt")) or as_str(body.get("inputText"))
        return [prompt] if prompt else []

    def read_message(self, item: Any) -> list[Message]:
        """A prompt is a user message."""
        return [Message("user", as_str(item))]

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read an answer, or the chunks of one, in any of these models' formats."""
        texts: list[str] = []
        reason, tokens_in, tokens_out = "", -1, -1
        for document in documents:
            texts.append(_read_text(document))
            reason = _read_reason(document) or reason
            metrics = as_dict(document.get("amazon-bedrock-invocationMetrics"))
            usage = as_dict(document.get("usage"))
            prompt, said = as_dict(document.get("prompt")), as_dict(_choice(document).get("data"))
            tokens_in = _first(
                tokens_in,
                metrics.get("inputTokenCount"),
                document.get("prompt_token_count"),
                document.get("inputTextTokenCount"),
                usage.get("prompt_tokens"),
                _count(prompt.get("tokens")),
            )
            result = (as_dicts(document.get("results")) or [{}])[0]
            tokens_out = _first(
                tokens_out,
                metrics.get("outputTokenCount"),
                document.get("generation_token_count"),
                document.get("totalOutputTextTokenCount"),
                result.get("tokenCount"),
                usage.get("completion_tokens"),
                _count(said.get("tokens")),
            )
        text = "".join(texts)
        return ResponseMeaning(
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            finish_reason=reason,
            text=text,
            is_complete=bool(reason),
            messages=(Message("assistant", text),) if text or reason else (),
        )


def _first(otherwise: int, *values: Any) -> int:
    """Return the first stated count, else the one of earlier documents."""
    return next((found for found in map(as_int, values) if found >= 0), otherwise)


def _count(tokens: Any) -> int:
    """Return the length of AI21's list of tokens; -1 if there is none."""
    return len(tokens) if isinstance(tokens, list) else -1


def _choice(document: dict[str, Any]) -> dict[str, Any]:
    for name in ("results", "outputs", "choices", "generations", "completions"):
        found = as_dicts(document.get(name))
        if found:
            return found[0]
    return document


def _read_text(document: dict[str, Any]) -> str:
    choice = _choice(document)
    choice = as_dict(choice.get("data")) or choice  # AI21
    return next((as_str(choice[name]) for name in ("generation", "outputText", "text") if choice.get(name)), "")


def _read_reason(document: dict[str, Any]) -> str:
    choice = _choice(document)
    ended = as_dict(choice.get("finishReason"))  # AI21
    if ended:
        return as_str(ended.get("reason"))
    return next((as_str(choice[n]) for n in ("stop_reason", "completionReason", "finish_reason") if choice.get(n)), "")
