"""Anthropic messages, and every provider that uses their protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import Message, ResponseMeaning, ToolCall
from spanreplay.dialects._wire import as_dict, as_dicts, as_int, as_str, join_texts, to_json

__all__ = ["AnthropicMessages"]

_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")


class AnthropicMessages(Dialect):
    """POST …/v1/messages; on Vertex AI and Bedrock the URL states the model and whether to stream."""

    name: ClassVar[str] = "anthropic.messages"
    keyspec: ClassVar[str] = "anthropic_messages/1"
    system: ClassVar[str] = "anthropic"
    content_fields: ClassVar[frozenset[str]] = frozenset({"model", "messages", "system", "tools", "mcp_servers"})

    def accepts(self, body: Any) -> bool:
        """A request has messages; if other models share the path, it also states the protocol's version."""
        fields = as_dict(body)
        is_ours = self.is_url_stream is None or "anthropic_version" in fields
        return is_ours and isinstance(fields.get("messages"), list)

    def read_system(self, body: Mapping[str, Any]) -> list[str]:
        """The system field, a string or text blocks."""
        text = join_texts(body.get("system"), "text")
        return [text] if text else []

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The messages."""
        messages = body.get("messages")
        return messages if isinstance(messages, list) else []

    def read_message(self, item: Any) -> list[Message]:
        """Read one message; each tool result in it becomes a separate message."""
        fields = as_dict(item)
        blocks = as_dicts(fields.get("content"))
        results = [_read_result(block) for block in blocks if as_str(block.get("type")).endswith("tool_result")]
        text = join_texts(fields.get("content"), "text")
        calls = tuple(_read_call(block) for block in blocks if block.get("type") in _CALLS)
        urls = tuple(_image_url(block) for block in blocks if block.get("type") == "image")
        if results and not (text or calls or urls):
            return results
        return [*results, Message(as_str(fields.get("role")), text, calls, image_urls=urls)]

    def read_result_ids(self, body: Mapping[str, Any]) -> list[str]:
        """Return the call ids in tool_result blocks."""
        blocks = (b for m in as_dicts(body.get("messages")) for b in as_dicts(m.get("content")))
        return [as_str(block["tool_use_id"]) for block in blocks if block.get("tool_use_id")]

    def tool_schemas(self, body: Mapping[str, Any]) -> list[Any]:
        """The tools."""
        return as_dicts(body.get("tools"))

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read a message, or the events of one."""
        if not is_stream:
            message = documents[0] if documents else {}
            return _fold_message(message, is_complete=bool(message.get("stop_reason")))
        message, blocks, is_complete = {}, {}, False
        for event in documents:
            kind = as_str(event.get("type"))
            if kind == "message_start":
                message = dict(as_dict(event.get("message")))
            elif kind == "content_block_start":
                blocks[as_int(event.get("index"))] = _Block(as_dict(event.get("content_block")))
            elif kind == "content_block_delta":
                block = blocks.setdefault(as_int(event.get("index")), _Block({"type": "text"}))
                block.add(as_dict(event.get("delta")))
            elif kind == "message_delta":
                message.update(as_dict(event.get("delta")))
                message["usage"] = {**as_dict(message.get("usage")), **as_dict(event.get("usage"))}
            elif kind == "message_stop":
                is_complete = True
        message["content"] = [blocks[index].whole() for index in sorted(blocks)]
        return _fold_message(message, is_complete=is_complete)


class _Block:
    """A content block of a stream."""

    def __init__(self, start: dict[str, Any]) -> None:
        self._start = start
        self._texts = [as_str(start.get("text"))]
        self._inputs: list[str] = []

    def add(self, delta: dict[str, Any]) -> None:
        self._texts.append(as_str(delta.get("text")))
        self._inputs.append(as_str(delta.get("partial_json")))

    def whole(self) -> dict[str, Any]:
        block = {**self._start, "text": "".join(self._texts)}
        arguments = "".join(self._inputs)
        if arguments:
            block["input"] = arguments
        return block


def _fold_message(message: dict[str, Any], *, is_complete: bool) -> ResponseMeaning:
    usage = as_dict(message.get("usage"))
    blocks = as_dicts(message.get("content"))
    text = "".join(as_str(block.get("text")) for block in blocks if block.get("type") == "text")
    calls = tuple(_read_call(block) for block in blocks if block.get("type") in _CALLS)
    role = as_str(message.get("role")) or "assistant"
    read, written = as_int(usage.get("cache_read_input_tokens")), as_int(usage.get("cache_creation_input_tokens"))
    fresh = as_int(usage.get("input_tokens"))
    return ResponseMeaning(
        model=as_str(message.get("model")),
        response_id=as_str(message.get("id")),
        tokens_in=fresh if fresh < 0 else fresh + max(read, 0) + max(written, 0),
        tokens_out=as_int(usage.get("output_tokens")),
        tokens_cache_read=read,
        tokens_cache_write=written,
        finish_reason=as_str(message.get("stop_reason")),
        text=text,
        tool_calls=calls,
        is_complete=is_complete,
        messages=(Message(role, text, calls),) if blocks else (),
    )


def _read_call(block: dict[str, Any]) -> ToolCall:
    given = block.get("input")
    arguments = given if isinstance(given, str) else to_json(given)
    return ToolCall(as_str(block.get("id")), as_str(block.get("name")), arguments)


def _read_result(block: dict[str, Any]) -> Message:
    content = block.get("content")
    text = join_texts(content, "text") or ("" if content is None else to_json(content))
    return Message("tool", text, tool_call_id=as_str(block.get("tool_use_id")))


def _image_url(block: dict[str, Any]) -> str:
    source = as_dict(block.get("source"))
    if source.get("type") == "base64":
        return f"data:{as_str(source.get('media_type'))};base64,{as_str(source.get('data'))}"
    return as_str(source.get("url")) or as_str(source.get("file_id"))
