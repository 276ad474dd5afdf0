"""What every dialect does the same way; each dialect fills in the protocol."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from spanreplay.call import Effect, Kind
from spanreplay.canonical import canonicalize
from spanreplay.dialects._meaning import Message, RequestMeaning, ResponseMeaning
from spanreplay.dialects._openinference import AttributeValue, build_attributes
from spanreplay.dialects._wire import as_dict, as_str, error_text, read_documents
from spanreplay.keyspec import select

__all__ = ["Dialect"]


@dataclass(frozen=True)
class Dialect(ABC):
    """One protocol, bound to the provider that the URL names; all methods are pure and never raise on bad bodies."""

    provider: str
    url_model: str = ""

    kind: ClassVar[Kind] = Kind.LLM
    name: ClassVar[str]
    keyspec: ClassVar[str]
    system: ClassVar[str]
    content_fields: ClassVar[frozenset[str]]
    """Fields that are content rather than parameters of the invocation."""

    @abstractmethod
    def accepts(self, body: Any) -> bool:
        """Whether a body posted to this path is this protocol's at all."""

    @abstractmethod
    def read_system(self, body: Mapping[str, Any]) -> list[str]:
        """The system prompt's texts."""

    @abstractmethod
    def read_message(self, item: Any) -> list[Message]:
        """One element of the conversation; some protocols put several messages in one."""

    @abstractmethod
    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The conversation's elements, oldest first, without the system prompt where that is apart."""

    @abstractmethod
    def read_result_ids(self, body: Mapping[str, Any]) -> list[str]:
        """Ids of the tool calls whose results the conversation brings back."""

    @abstractmethod
    def tool_schemas(self, body: Mapping[str, Any]) -> list[Any]:
        """The tools' JSON schemas."""

    @abstractmethod
    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """The meaning of a response's JSON objects: one body, or a stream's events."""

    def read_request(self, body: Any) -> RequestMeaning:
        """What is asked for."""
        fields = as_dict(body)
        kept, ignored = select(self.keyspec, fields)
        system = self.read_system(fields)
        return RequestMeaning(
            kind=self.kind.value,
            name=self.name,
            effect=Effect.READ.value,
            keyspec=self.keyspec,
            key_fields=kept,
            ignored=tuple(ignored),
            model=as_str(fields.get("model")) or self.url_model,
            parameters={name: value for name, value in kept.items() if name not in self.content_fields},
            provider=self.provider,
            is_stream=fields.get("stream") is True,
            system_prompt_hash=hashlib.sha256(canonicalize(system)).hexdigest() if system else "",
            tool_call_ids=tuple(self.read_result_ids(fields)),
        )

    def read_response(self, status: int, chunks: Sequence[str], is_stream: bool = False) -> ResponseMeaning:
        """What came back; `chunks` is the decoded body, cut anywhere; a cut body gives what it holds."""
        documents, has_events = read_documents(chunks)
        errors = (error_text(status if index == 0 else 0, each, chunks) for index, each in enumerate(documents or [{}]))
        error = next((each for each in errors if each), "")
        if error and status >= 400:
            return ResponseMeaning(error=error, is_complete=bool(documents))
        folded = self.fold(documents, has_events)
        is_complete = folded.is_complete and not error and not (is_stream and not documents)
        return replace(folded, error=error or folded.error, is_complete=is_complete)

    def openinference(
        self, body: Any, request: RequestMeaning, response: ResponseMeaning | None = None
    ) -> dict[str, AttributeValue]:
        """The span's OpenInference attributes, bounded in number and size."""
        return build_attributes(self, as_dict(body), request, response)
