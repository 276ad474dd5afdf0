"""Embeddings in Bedrock's InvokeModel: Titan's, Nova's and Cohere's bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import ResponseMeaning
from spanreplay.dialects._wire import as_dict, as_int, as_str
from spanreplay.model.call import Kind

__all__ = ["BedrockEmbed"]

_NOVA: Final = ("singleEmbeddingParams", "segmentedEmbeddingParams")


class BedrockEmbed(Dialect):
    """POST …/model/MODEL/invoke with `inputText`, `inputImage`, `texts`, `images`, `inputs`, or a Nova task."""

    kind: ClassVar[Kind] = Kind.EMBEDDING
    name: ClassVar[str] = "bedrock.embed"
    keyspec: ClassVar[str] = "bedrock_embed/1"
    system: ClassVar[str] = "amazon"
    content_fields: ClassVar[frozenset[str]] = frozenset(
        {"model", "inputText", "inputImage", "texts", "images", "inputs", *_NOVA}
    )

    def accepts(self, body: Any) -> bool:
        """Any request with input to embed that the preceding rows for prompts don't accept."""
        fields = as_dict(body)
        is_titan = isinstance(fields.get("inputText"), str) or isinstance(fields.get("inputImage"), str)
        is_nova = any(isinstance(fields.get(name), dict) for name in _NOVA)
        return is_titan or is_nova or any(isinstance(fields.get(name), list) for name in ("texts", "images", "inputs"))

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The items to embed."""
        found = (body.get(name) for name in ("inputText", "inputImage", "texts", "images", "inputs", *_NOVA))
        return [each for given in found if given for each in (given if isinstance(given, list) else [given])]

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Usage; the vectors stay in the recorded response."""
        document = documents[0] if documents else {}
        tokens_in = as_int(document.get("inputTextTokenCount"))
        return ResponseMeaning(
            response_id=as_str(document.get("id")),
            tokens_in=tokens_in,
            tokens_out=0 if tokens_in >= 0 else -1,
            is_complete="embedding" in document or "embeddings" in document or "embeddingsByType" in document,
        )
