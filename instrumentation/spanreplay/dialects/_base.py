"""The base class of dialects: the common parts; each subclass adds its protocol."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from spanreplay.dialects._meaning import Message, RequestMeaning, ResponseMeaning
from spanreplay.dialects._openinference import AttributeValue, build_attributes
from spanreplay.dialects._wire import as_dict, as_str, error_text, read_documents
from spanreplay.model.call import Effect, Kind
from spanreplay.model.canonical import canonicalize
from spanreplay.model.keyspec import select

__all__ = ["Dialect"]


@dataclass(frozen=True)
class Dialect(ABC):
    """One protocol, bound to the provider in the URL. All methods are pure and never raise on bad bodies.

    `url_model` and `is_url_stream` come from the URL, if it states the model or streaming: they take precedence over
    the body, and are part of the key.
    """

    provider: str
    url_model: str = ""
    is_url_stream: bool | None = None

    kind: ClassVar[Kind] = Kind.LLM
    name: ClassVar[str]
    keyspec: ClassVar[str]
    system: ClassVar[str]
    content_fields: ClassVar[frozenset[str]]
    """Fields that are content, not parameters of the invocation."""
    nested_parameters: ClassVar[tuple[str, ...]] = ()
    """Fields whose members are parameters."""
    is_stream_by_default: ClassVar[bool] = False
    """Whether a request that doesn't mention streaming is answered by a stream."""

    @abstractmethod
    def accepts(self, body: Any) -> bool:
        """Whether a body posted to this path belongs to this protocol."""

    @abstractmethod
    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """Return the conversation's items, oldest first, without the system prompt if that is a separate field."""

    @abstractmethod
    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Return the meaning of a response's JSON objects: one body, or a stream's events."""

    def read_system(self, body: Mapping[str, Any]) -> list[str]:
        """Return the texts of the system prompt."""
        return []

    def read_message(self, item: Any) -> list[Message]:
        """Read one item of the conversation; in some protocols it contains several messages."""
        return []

    def read_result_ids(self, body: Mapping[str, Any]) -> list[str]:
        """Return ids of tool calls whose results are in the conversation."""
        return []

    def tool_schemas(self, body: Mapping[str, Any]) -> list[Any]:
        """Return the JSON schemas of the tools."""
        return []

    def read_request(self, body: Any) -> RequestMeaning:
        """Read the meaning of a request."""
        fields = dict(as_dict(body))
        if self.url_model:
            fields["model"] = self.url_model
        if self.is_url_stream is not None:
            fields["stream"] = self.is_url_stream
        kept, ignored = select(self.keyspec, fields)
        system = self.read_system(fields)
        return RequestMeaning(
            kind=self.kind.value,
            name=self.name,
            effect=Effect.READ.value,
            keyspec=self.keyspec,
            key_fields=kept,
            ignored=tuple(ignored),
            model=as_str(fields.get("model")),
            parameters=self._parameters(kept),
            provider=self.provider,
            is_stream=fields["stream"] is True if "stream" in fields else self.is_stream_by_default,
            system_prompt_hash=hashlib.sha256(canonicalize(system)).hexdigest() if system else "",
            tool_call_ids=tuple(self.read_result_ids(fields)),
        )

    def _parameters(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        flat = {name: value for name, value in kept.items() if name not in self.content_fields}
        for name in self.nested_parameters:
            flat.update(as_dict(flat.pop(name, None)))
        return flat

    def read_response(self, status: int, chunks: Sequence[str], is_stream: bool = False) -> ResponseMeaning:
        """Read the meaning of a response, even a truncated one; `chunks` is the decoded body, split anywhere."""
        documents, has_events = read_documents(chunks)
        error = ""
        for index, each in enumerate(documents or [{}]):
            error = error_text(status if index == 0 else 0, each, chunks)
            if error:
                break
        if error and status >= 400:
            return ResponseMeaning(error=error, is_complete=bool(documents))
        folded = self.fold(documents, has_events)
        is_complete = folded.is_complete and not error and not (is_stream and not documents)
        if not error and is_complete is folded.is_complete:
            return folded
        return folded._replace(error=error or folded.error, is_complete=is_complete)

    def openinference(
        self, body: Any, request: RequestMeaning, response: ResponseMeaning | None = None
    ) -> dict[str, AttributeValue]:
        """Return the span's OpenInference attributes, bounded in number and size."""
        return build_attributes(self, as_dict(body), request, response)
