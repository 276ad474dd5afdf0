"""What every dialect does the same way; each dialect fills in the protocol."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    """One protocol, bound to the provider that the URL names; all methods are pure and never raise on bad bodies.

    `url_model` and `is_url_stream` are what the URL says of the model and of streaming, where it says so: they
    count more than the body, and are in the key.
    """

    provider: str
    url_model: str = ""
    is_url_stream: bool | None = None

    kind: ClassVar[Kind] = Kind.LLM
    name: ClassVar[str]
    keyspec: ClassVar[str]
    system: ClassVar[str]
    content_fields: ClassVar[frozenset[str]]
    """Fields that are content rather than parameters of the invocation."""
    nested_parameters: ClassVar[tuple[str, ...]] = ()
    """Fields whose members are parameters."""
    is_stream_by_default: ClassVar[bool] = False
    """Whether a request that says nothing of streaming is answered by a stream."""

    @abstractmethod
    def accepts(self, body: Any) -> bool:
        """Whether a body posted to this path is this protocol's at all."""

    @abstractmethod
    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The conversation's elements, oldest first, without the system prompt where that is apart."""

    @abstractmethod
    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """The meaning of a response's JSON objects: one body, or a stream's events."""

    def read_system(self, body: Mapping[str, Any]) -> list[str]:
        """The system prompt's texts."""
        return []

    def read_message(self, item: Any) -> list[Message]:
        """One element of the conversation; some protocols put several messages in one."""
        return []

    def read_result_ids(self, body: Mapping[str, Any]) -> list[str]:
        """Ids of the tool calls whose results the conversation brings back."""
        return []

    def tool_schemas(self, body: Mapping[str, Any]) -> list[Any]:
        """The tools' JSON schemas."""
        return []

    def read_request(self, body: Any) -> RequestMeaning:
        """What is asked for."""
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
