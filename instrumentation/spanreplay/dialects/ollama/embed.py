"""Ollama's native embeddings, in the new and the old format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import ResponseMeaning
from spanreplay.dialects._wire import as_dict, as_int, as_str
from spanreplay.model.call import Kind

__all__ = ["OllamaEmbed"]


class OllamaEmbed(Dialect):
    """POST …/api/embed, and its predecessor …/api/embeddings."""

    kind: ClassVar[Kind] = Kind.EMBEDDING
    name: ClassVar[str] = "ollama.embed"
    keyspec: ClassVar[str] = "ollama_embed/1"
    system: ClassVar[str] = "ollama"
    content_fields: ClassVar[frozenset[str]] = frozenset({"model", "input", "prompt"})
    nested_parameters: ClassVar[tuple[str, ...]] = ("options",)

    def accepts(self, body: Any) -> bool:
        """A request names a model and has input to embed."""
        fields = as_dict(body)
        return isinstance(fields.get("model"), str) and isinstance(
            fields.get("input", fields.get("prompt")), str | list
        )

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The texts to embed."""
        given = body.get("input", body.get("prompt"))
        return given if isinstance(given, list) else [] if given is None else [given]

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Model and usage; the vectors stay in the recorded response."""
        document = documents[0] if documents else {}
        tokens_in = as_int(document.get("prompt_eval_count"))
        return ResponseMeaning(
            model=as_str(document.get("model")),
            tokens_in=tokens_in,
            tokens_out=0 if tokens_in >= 0 else -1,
            is_complete=isinstance(document.get("embeddings", document.get("embedding")), list),
        )
