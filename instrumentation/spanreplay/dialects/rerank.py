"""Reranking and scoring: Cohere, Voyage, Jina, vLLM, and compatible providers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import RequestMeaning, ResponseMeaning
from spanreplay.dialects._openinference import AttributeValue, build_reranker_attributes
from spanreplay.dialects._wire import as_dict, as_dicts, as_int, as_str, to_json
from spanreplay.dialects.cohere.chat import read_usage
from spanreplay.model.call import Kind

__all__ = ["Rerank"]

_QUERIES: Final = ("query", "queries", "text_1", "data_1")
_DOCUMENTS: Final = ("documents", "texts", "text_2", "data_2")


class Rerank(Dialect):
    """POST …/rerank and …/score: how relevant documents are to a query."""

    kind: ClassVar[Kind] = Kind.RETRIEVER
    name: ClassVar[str] = "rerank"
    keyspec: ClassVar[str] = "rerank/1"
    system: ClassVar[str] = ""
    content_fields: ClassVar[frozenset[str]] = frozenset({"model", *_QUERIES, *_DOCUMENTS})

    def accepts(self, body: Any) -> bool:
        """A request has a query, or several, and documents."""
        fields = as_dict(body)
        has_query = any(isinstance(fields.get(name), str | list) for name in _QUERIES)
        return has_query and any(isinstance(fields.get(name), str | list) for name in _DOCUMENTS)

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The documents."""
        given: Any = next((body[name] for name in _DOCUMENTS if body.get(name)), [])
        return given if isinstance(given, list) else [given]

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read model, usage and scores."""
        document = documents[0] if documents else {}
        usage = as_dict(document.get("usage"))
        tokens_in = as_int(usage.get("prompt_tokens", usage.get("total_tokens")))
        if tokens_in < 0:
            tokens_in, _ = read_usage(as_dict(document.get("meta")))
        return ResponseMeaning(
            model=as_str(document.get("model")),
            response_id=as_str(document.get("id")),
            tokens_in=tokens_in,
            tokens_out=0 if tokens_in >= 0 else -1,
            is_complete=is_stream or any(isinstance(document.get(name), list) for name in ("results", "data")),
            scores=_read_scores(documents),
        )

    def openinference(
        self, body: Any, request: RequestMeaning, response: ResponseMeaning | None = None
    ) -> dict[str, AttributeValue]:
        """Return the span's OpenInference attributes for a reranker."""
        fields = as_dict(body)
        query = next((fields[name] for name in _QUERIES if fields.get(name)), "")
        texts = [_read_text(each) for each in self.conversation(fields)]
        top_k = as_int(fields.get("top_n", fields.get("top_k")))
        shown = query if isinstance(query, str) else to_json(query)
        return build_reranker_attributes(fields, request, response, query=shown, texts=texts, top_k=top_k)


def _read_text(document: Any) -> str:
    fields = as_dict(document)
    return document if isinstance(document, str) else as_str(fields.get("text")) or to_json(document)


def _read_scores(documents: Sequence[dict[str, Any]]) -> tuple[tuple[int, float], ...]:
    """Return (index, score) of each result, in the given order, without invalid ones."""
    first = documents[0] if documents else {}
    found = []
    for row in as_dicts(first.get("results")) or as_dicts(first.get("data")) or documents:
        index, score = as_int(row.get("index")), row.get("relevance_score", row.get("score"))
        if index >= 0 and isinstance(score, int | float):
            found.append((index, score))
    return tuple(found)
