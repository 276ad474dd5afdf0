"""Google's embeddings: embedContent and batchEmbedContents of the Gemini API, predict of Vertex AI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import ResponseMeaning
from spanreplay.dialects._wire import as_dict, as_dicts, as_int, as_str
from spanreplay.model.call import Kind

__all__ = ["GoogleEmbed"]


class GoogleEmbed(Dialect):
    """POST …/models/MODEL:embedContent, :batchEmbedContents and, for texts, :predict."""

    kind: ClassVar[Kind] = Kind.EMBEDDING
    name: ClassVar[str] = "google.embed_content"
    keyspec: ClassVar[str] = "google_embed/1"
    system: ClassVar[str] = "google"
    content_fields: ClassVar[frozenset[str]] = frozenset({"model", "content", "requests", "instances"})
    nested_parameters: ClassVar[tuple[str, ...]] = ("parameters",)

    def accepts(self, body: Any) -> bool:
        """A request has contents; other `predict` models (images, tables) have other instances."""
        fields = as_dict(body)
        if isinstance(fields.get("content"), dict) or isinstance(fields.get("requests"), list):
            return True
        instances = fields.get("instances")
        return isinstance(instances, list) and any("content" in each for each in as_dicts(instances))

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The texts to embed."""
        given = [body, *as_dicts(body.get("requests")), *as_dicts(body.get("instances"))]
        return [text for each in given if "content" in each for text in _read_texts(each["content"])]

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Usage, if stated; the vectors stay in the recorded response."""
        document = documents[0] if documents else {}
        vectors = [as_dict(each.get("embeddings")) for each in as_dicts(document.get("predictions"))]
        counts = [as_int(as_dict(each.get("statistics")).get("token_count")) for each in vectors]
        tokens_in = sum(counts) if counts and min(counts) >= 0 else -1
        if tokens_in < 0:
            tokens_in = as_int(as_dict(document.get("usageMetadata")).get("promptTokenCount"))
        return ResponseMeaning(
            model=as_str(document.get("modelVersion")),
            tokens_in=tokens_in,
            tokens_out=0 if tokens_in >= 0 else -1,
            is_complete=any(name in document for name in ("embedding", "embeddings", "predictions")),
        )


def _read_texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [as_str(part.get("text")) for part in as_dicts(as_dict(content).get("parts")) if part.get("text")]
