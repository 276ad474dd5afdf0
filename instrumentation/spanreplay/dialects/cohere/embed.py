"""Cohere's embeddings, versions 1 and 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import ResponseMeaning
from spanreplay.dialects._wire import as_dict, as_str
from spanreplay.dialects.cohere.chat import read_usage
from spanreplay.model.call import Kind

__all__ = ["CohereEmbed"]


class CohereEmbed(Dialect):
    """POST …/v1/embed and …/v2/embed."""

    kind: ClassVar[Kind] = Kind.EMBEDDING
    name: ClassVar[str] = "cohere.embed"
    keyspec: ClassVar[str] = "cohere_embed/1"
    system: ClassVar[str] = "cohere"
    content_fields: ClassVar[frozenset[str]] = frozenset({"model", "texts", "images", "inputs"})

    def accepts(self, body: Any) -> bool:
        """A request has texts, images or both mixed."""
        return any(isinstance(as_dict(body).get(name), list) for name in ("texts", "images", "inputs"))

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The items to embed."""
        found = (body.get(name) for name in ("texts", "inputs", "images"))
        return [each for given in found if isinstance(given, list) for each in given]

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Usage; the vectors stay in the recorded response."""
        document = documents[0] if documents else {}
        tokens_in, _ = read_usage(as_dict(document.get("meta")))
        return ResponseMeaning(
            response_id=as_str(document.get("id")),
            tokens_in=tokens_in,
            tokens_out=0 if tokens_in >= 0 else -1,
            is_complete=isinstance(document.get("embeddings"), list | dict),
        )
