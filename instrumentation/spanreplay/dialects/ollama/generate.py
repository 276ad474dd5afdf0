"""Ollama's native completion of one prompt: it streams JSON lines by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import Message, ResponseMeaning
from spanreplay.dialects._wire import as_dict, as_str
from spanreplay.dialects.ollama.chat import fold_lines

__all__ = ["OllamaGenerate"]


class OllamaGenerate(Dialect):
    """POST …/api/generate."""

    name: ClassVar[str] = "ollama.generate"
    keyspec: ClassVar[str] = "ollama_generate/1"
    system: ClassVar[str] = "ollama"
    content_fields: ClassVar[frozenset[str]] = frozenset({"model", "prompt", "suffix", "system", "images", "context"})
    nested_parameters: ClassVar[tuple[str, ...]] = ("options",)
    is_stream_by_default: ClassVar[bool] = True

    def accepts(self, body: Any) -> bool:
        """A request names a model and has a prompt; without a prompt it only loads the model."""
        fields = as_dict(body)
        return isinstance(fields.get("model"), str) and bool(as_str(fields.get("prompt")))

    def read_system(self, body: Mapping[str, Any]) -> list[str]:
        """The system prompt."""
        text = as_str(body.get("system"))
        return [text] if text else []

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The prompt."""
        return [body["prompt"]] if body.get("prompt") else []

    def read_message(self, item: Any) -> list[Message]:
        """A prompt is a user message."""
        return [Message("user", as_str(item))]

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read an answer, or the lines of one."""
        return fold_lines(documents, "".join(as_str(document.get("response")) for document in documents))
