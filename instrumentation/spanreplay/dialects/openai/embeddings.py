"""OpenAI embeddings and compatible providers: vLLM, Mistral, Voyage, Jina, …"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import ResponseMeaning
from spanreplay.dialects._wire import as_dict, as_int, as_str
from spanreplay.model.call import Kind

__all__ = ["OpenAIEmbeddings"]


class OpenAIEmbeddings(Dialect):
    """POST …/embeddings."""

    kind: ClassVar[Kind] = Kind.EMBEDDING
    name: ClassVar[str] = "openai.embeddings"
    keyspec: ClassVar[str] = "openai_embeddings/1"
    system: ClassVar[str] = "openai"
    content_fields: ClassVar[frozenset[str]] = frozenset({"model", "input"})

    def accepts(self, body: Any) -> bool:
        """A request has input and names a model."""
        fields = as_dict(body)
        has_model = isinstance(fields.get("model"), str) or bool(self.url_model)
        return isinstance(fields.get("input"), str | list) and has_model

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The texts or token lists to embed."""
        given = body.get("input")
        if isinstance(given, list) and not (given and isinstance(given[0], int)):
            return given
        return [] if given is None else [given]

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Model and usage; the vectors stay in the recorded response."""
        document = documents[0] if documents else {}
        usage = as_dict(document.get("usage"))
        return ResponseMeaning(
            model=as_str(document.get("model")),
            response_id=as_str(document.get("id")),
            tokens_in=as_int(usage.get("prompt_tokens", usage.get("total_tokens"))),  # Voyage states only the total
            tokens_out=0 if usage else -1,
            is_complete=isinstance(document.get("data"), list),
        )
