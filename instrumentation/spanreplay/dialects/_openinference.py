"""Builds a span's OpenInference attributes: bounded, with priority for the system prompt and the newest messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

from openinference.semconv.trace import (
    DocumentAttributes,
    EmbeddingAttributes,
    ImageAttributes,
    MessageAttributes,
    MessageContentAttributes,
    RerankerAttributes,
    SpanAttributes,
    ToolAttributes,
    ToolCallAttributes,
)

from spanreplay.dialects._meaning import Message, RequestMeaning, ResponseMeaning
from spanreplay.dialects._wire import to_json
from spanreplay.model.call import Kind

__all__ = ["AttributeValue", "build_attributes", "build_reranker_attributes"]

AttributeValue = str | int | float | bool


class Reader(Protocol):
    """The methods of a dialect that build attributes."""

    system: ClassVar[str]

    def conversation(self, body: Any) -> Sequence[Any]:
        """Return the items of a request's conversation, oldest first."""

    def tool_schemas(self, body: Any) -> Sequence[Any]:
        """Return the tools that a request offers."""

    def read_system(self, body: Any) -> list[str]:
        """Return the system prompts of a request."""

    def read_message(self, item: Any) -> Sequence[Message]:
        """Read one item of a conversation as messages."""


ATTRIBUTES_MAX: Final = 100
VALUE_BYTES_MAX: Final = 64 * 1024
OUTPUT_ATTRIBUTES_MAX: Final = 30
TOOLS_MAX: Final = 15
JSON: Final = "application/json"
_SPAN_KINDS: Final = {Kind.LLM.value: "LLM", Kind.EMBEDDING.value: "EMBEDDING"}


def build_attributes(
    dialect: Reader, body: Mapping[str, Any], request: RequestMeaning, response: ResponseMeaning | None
) -> dict[str, AttributeValue]:
    """Return at most ATTRIBUTES_MAX attributes, each text at most VALUE_BYTES_MAX bytes of UTF-8."""
    attributes = _Attributes()
    is_embedding = request.kind == Kind.EMBEDDING.value
    attributes.put(SpanAttributes.OPENINFERENCE_SPAN_KIND, _SPAN_KINDS.get(request.kind, "CHAIN"))
    attributes.put_json(SpanAttributes.INPUT_VALUE, SpanAttributes.INPUT_MIME_TYPE, dict(body))
    parameters = to_json(dict(request.parameters)) if request.parameters else ""
    if is_embedding:
        attributes.put(SpanAttributes.EMBEDDING_MODEL_NAME, request.model)
        attributes.put(SpanAttributes.EMBEDDING_INVOCATION_PARAMETERS, parameters)
    else:
        attributes.put(SpanAttributes.LLM_MODEL_NAME, (response.model if response else "") or request.model)
        attributes.put(SpanAttributes.LLM_INVOCATION_PARAMETERS, parameters)
    attributes.put(SpanAttributes.LLM_PROVIDER, request.provider)
    attributes.put(SpanAttributes.LLM_SYSTEM, dialect.system)
    if response is not None:
        _put_response(attributes, response)
    if is_embedding:
        _put_embedded_texts(attributes, dialect.conversation(body))
        return attributes.values
    schemas = dialect.tool_schemas(body)
    for index, schema in enumerate(schemas[:TOOLS_MAX]):
        name = f"{SpanAttributes.LLM_TOOLS}.{index}.{ToolAttributes.TOOL_JSON_SCHEMA}"
        attributes.put(name, to_json(schema))
    _put_input_messages(attributes, dialect, body)
    return attributes.values


def build_reranker_attributes(
    body: Mapping[str, Any],
    request: RequestMeaning,
    response: ResponseMeaning | None,
    *,
    query: str,
    texts: list[str],
    top_k: int,
) -> dict[str, AttributeValue]:
    """Return a reranker's attributes, with the same bounds; output documents are ordered best first, with scores."""
    attributes = _Attributes()
    attributes.put(SpanAttributes.OPENINFERENCE_SPAN_KIND, "RERANKER")
    attributes.put_json(SpanAttributes.INPUT_VALUE, SpanAttributes.INPUT_MIME_TYPE, dict(body))
    attributes.put(RerankerAttributes.RERANKER_QUERY, query)
    attributes.put(RerankerAttributes.RERANKER_MODEL_NAME, (response.model if response else "") or request.model)
    attributes.put_count(RerankerAttributes.RERANKER_TOP_K, top_k)
    if response is not None:
        _put_response(attributes, response)
        for place, (index, score) in enumerate(response.scores):
            path = f"{RerankerAttributes.RERANKER_OUTPUT_DOCUMENTS}.{place}"
            attributes.put(f"{path}.{DocumentAttributes.DOCUMENT_SCORE}", score)
            if 0 <= index < len(texts):
                attributes.put(f"{path}.{DocumentAttributes.DOCUMENT_CONTENT}", texts[index])
    for index, text in enumerate(texts):
        path = f"{RerankerAttributes.RERANKER_INPUT_DOCUMENTS}.{index}"
        attributes.put(f"{path}.{DocumentAttributes.DOCUMENT_CONTENT}", text)
    return attributes.values


class _Attributes:
    """The attributes so far."""

    def __init__(self) -> None:
        self.values: dict[str, AttributeValue] = {}

    def room(self) -> int:
        return ATTRIBUTES_MAX - len(self.values)

    def put(self, name: str, value: AttributeValue) -> None:
        if value == "" or (name not in self.values and self.room() <= 0):
            return
        self.values[name] = _cut(value)[0] if isinstance(value, str) else value

    def put_json(self, name: str, mime_name: str, value: Any) -> None:
        text, is_cut = _cut(to_json(value))
        self.put(name, text)
        self.put(mime_name, "text/plain" if is_cut else JSON)

    def put_count(self, name: str, count: int) -> None:
        if count >= 0:
            self.put(name, count)

    def put_message(self, prefix: str, message: Message, limit: int = ATTRIBUTES_MAX) -> bool:
        """Add all of a message's attributes, or none."""
        pairs = list(_iter_message(prefix, message))
        if len(pairs) > min(limit, self.room()):
            return False
        for name, value in pairs:
            self.put(name, value)
        return True


def _put_response(attributes: _Attributes, response: ResponseMeaning) -> None:
    attributes.put_count(SpanAttributes.LLM_TOKEN_COUNT_PROMPT, response.tokens_in)
    attributes.put_count(SpanAttributes.LLM_TOKEN_COUNT_COMPLETION, response.tokens_out)
    if response.tokens_in >= 0:
        total = response.tokens_in + max(response.tokens_out, 0)
        attributes.put_count(SpanAttributes.LLM_TOKEN_COUNT_TOTAL, total)
    attributes.put_count(SpanAttributes.LLM_TOKEN_COUNT_PROMPT_DETAILS_CACHE_READ, response.tokens_cache_read)
    attributes.put_count(SpanAttributes.LLM_TOKEN_COUNT_PROMPT_DETAILS_CACHE_WRITE, response.tokens_cache_write)
    attributes.put_count(SpanAttributes.LLM_TOKEN_COUNT_COMPLETION_DETAILS_REASONING, response.tokens_reasoning)
    attributes.put("llm.finish_reason", response.finish_reason)
    if response.tool_calls or response.error:
        shown = {"content": response.text, "tool_calls": [call._asdict() for call in response.tool_calls]}
        if response.error:
            shown["error"] = response.error
        held = {name: value for name, value in shown.items() if value}
        attributes.put_json(SpanAttributes.OUTPUT_VALUE, SpanAttributes.OUTPUT_MIME_TYPE, held)
    elif response.text:
        attributes.put(SpanAttributes.OUTPUT_VALUE, response.text)
        attributes.put(SpanAttributes.OUTPUT_MIME_TYPE, "text/plain")
    left = OUTPUT_ATTRIBUTES_MAX
    for index, message in enumerate(response.messages):
        before = attributes.room()
        if not attributes.put_message(f"{SpanAttributes.LLM_OUTPUT_MESSAGES}.{index}", message, left):
            return
        left -= before - attributes.room()


def _put_input_messages(attributes: _Attributes, dialect: Reader, body: Mapping[str, Any]) -> None:
    """Add the system prompt, then the newest messages that fit, in order and numbered without gaps."""
    texts = dialect.read_system(body)[:1]
    system = [Message("system", text) for text in texts]
    room = attributes.room() - 2 * len(system)
    newest: list[Message] = []
    for message in _iter_backwards(dialect, body, texts):
        room -= _count_attributes(message)
        if room < 0:
            break
        newest.append(message)
    for index, message in enumerate([*system, *reversed(newest)]):
        attributes.put_message(f"{SpanAttributes.LLM_INPUT_MESSAGES}.{index}", message)


def _iter_backwards(dialect: Reader, body: Mapping[str, Any], system: list[str]) -> Iterator[Message]:
    for item in reversed(dialect.conversation(body)):
        for message in reversed(dialect.read_message(item)):
            if message.role in ("system", "developer") and [message.text] == system:
                continue  # already there as the system prompt
            yield message


def _put_embedded_texts(attributes: _Attributes, texts: Sequence[Any]) -> None:
    for index, text in enumerate(texts):
        name = f"{SpanAttributes.EMBEDDING_EMBEDDINGS}.{index}.{EmbeddingAttributes.EMBEDDING_TEXT}"
        attributes.put(name, text if isinstance(text, str) else to_json(text))


def _count_attributes(message: Message) -> int:
    contents = 2 * len(message.image_urls) + 2 * bool(message.text) if message.image_urls else bool(message.text)
    return 1 + contents + bool(message.tool_call_id) + bool(message.name) + 3 * len(message.tool_calls)


def _iter_message(prefix: str, message: Message) -> Iterator[tuple[str, AttributeValue]]:
    yield f"{prefix}.{MessageAttributes.MESSAGE_ROLE}", message.role
    if message.image_urls:
        contents = f"{prefix}.{MessageAttributes.MESSAGE_CONTENTS}"
        if message.text:
            yield f"{contents}.0.{MessageContentAttributes.MESSAGE_CONTENT_TYPE}", "text"
            yield f"{contents}.0.{MessageContentAttributes.MESSAGE_CONTENT_TEXT}", message.text
        for index, url in enumerate(message.image_urls, start=1 if message.text else 0):
            image = f"{MessageContentAttributes.MESSAGE_CONTENT_IMAGE}.{ImageAttributes.IMAGE_URL}"
            yield f"{contents}.{index}.{MessageContentAttributes.MESSAGE_CONTENT_TYPE}", "image"
            yield f"{contents}.{index}.{image}", url
    elif message.text:
        yield f"{prefix}.{MessageAttributes.MESSAGE_CONTENT}", message.text
    if message.tool_call_id:
        yield f"{prefix}.{MessageAttributes.MESSAGE_TOOL_CALL_ID}", message.tool_call_id
    if message.name:
        yield f"{prefix}.{MessageAttributes.MESSAGE_NAME}", message.name
    for index, call in enumerate(message.tool_calls):
        path = f"{prefix}.{MessageAttributes.MESSAGE_TOOL_CALLS}.{index}"
        yield f"{path}.{ToolCallAttributes.TOOL_CALL_ID}", call.id
        yield f"{path}.{ToolCallAttributes.TOOL_CALL_FUNCTION_NAME}", call.name
        yield f"{path}.{ToolCallAttributes.TOOL_CALL_FUNCTION_ARGUMENTS_JSON}", call.arguments


def _cut(text: str) -> tuple[str, bool]:
    """Return the text truncated to VALUE_BYTES_MAX, as valid Unicode, and whether it was truncated."""
    if text.isascii():
        return text[:VALUE_BYTES_MAX], len(text) > VALUE_BYTES_MAX
    encoded = text.encode("utf-8", "backslashreplace")  # lone surrogates cannot be exported
    if len(encoded) <= VALUE_BYTES_MAX:
        return encoded.decode(), False
    return encoded[:VALUE_BYTES_MAX].decode("utf-8", "ignore"), True
