"""Bedrock's Converse: one format for every model, streamed as AWS event messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import Message, ResponseMeaning, ToolCall
from spanreplay.dialects._wire import as_dict, as_dicts, as_int, as_str, to_json

__all__ = ["BedrockConverse"]


class BedrockConverse(Dialect):
    """POST …/model/MODEL/converse and …/converse-stream."""

    name: ClassVar[str] = "bedrock.converse"
    keyspec: ClassVar[str] = "bedrock_converse/1"
    system: ClassVar[str] = "amazon"
    content_fields: ClassVar[frozenset[str]] = frozenset({"model", "messages", "system", "toolConfig"})
    nested_parameters: ClassVar[tuple[str, ...]] = ("inferenceConfig",)

    def accepts(self, body: Any) -> bool:
        """A request has messages, or prompt variables if it refers to a stored prompt."""
        fields = as_dict(body)
        return isinstance(fields.get("messages"), list) or isinstance(fields.get("promptVariables"), dict)

    def read_system(self, body: Mapping[str, Any]) -> list[str]:
        """The texts of the system blocks, joined."""
        text = _join(as_dicts(body.get("system")), "\n")
        return [text] if text else []

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The messages."""
        messages = body.get("messages")
        return messages if isinstance(messages, list) else []

    def read_message(self, item: Any) -> list[Message]:
        """Read one message; each tool result in it becomes a separate message."""
        fields = as_dict(item)
        blocks = as_dicts(fields.get("content"))
        results = [_read_result(as_dict(b["toolResult"])) for b in blocks if "toolResult" in b]
        text, calls = _join(blocks, "\n"), _read_calls(blocks)
        urls = tuple(_image_url(as_dict(b["image"])) for b in blocks if "image" in b)
        if results and not (text or calls or urls):
            return results
        return [*results, Message(as_str(fields.get("role")), text, calls, image_urls=urls)]

    def read_result_ids(self, body: Mapping[str, Any]) -> list[str]:
        """Return the call ids in toolResult blocks."""
        blocks = (b for m in as_dicts(body.get("messages")) for b in as_dicts(m.get("content")))
        found = (as_str(as_dict(block.get("toolResult")).get("toolUseId")) for block in blocks)
        return [each for each in found if each]

    def tool_schemas(self, body: Mapping[str, Any]) -> list[Any]:
        """The tools, without cache points."""
        tools = as_dicts(as_dict(body.get("toolConfig")).get("tools"))
        return [spec for spec in (as_dict(tool.get("toolSpec")) for tool in tools) if spec]

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read an answer, or the events of one: {event type: its fields}."""
        if not is_stream:
            whole = documents[0] if documents else {}
            return _fold_answer(whole, as_dict(as_dict(whole.get("output")).get("message")))
        answer: dict[str, Any] = {}
        role = "assistant"
        blocks: dict[int, _Block] = {}
        for event in documents:
            for kind, value in event.items():
                fields = as_dict(value)
                index = as_int(fields.get("contentBlockIndex"))
                if kind == "messageStart":
                    role = as_str(fields.get("role")) or role
                elif kind == "contentBlockStart":
                    blocks.setdefault(index, _Block()).start(as_dict(fields.get("start")))
                elif kind == "contentBlockDelta":
                    blocks.setdefault(index, _Block()).add(as_dict(fields.get("delta")))
                elif kind in ("messageStop", "metadata"):
                    answer.update(fields)
        return _fold_answer(answer, {"role": role, "content": [blocks[index].whole() for index in sorted(blocks)]})


class _Block:
    """A content block of a stream."""

    def __init__(self) -> None:
        self._call: dict[str, Any] = {}
        self._texts: list[str] = []
        self._inputs: list[str] = []

    def start(self, start: dict[str, Any]) -> None:
        self._call = as_dict(start.get("toolUse"))

    def add(self, delta: dict[str, Any]) -> None:
        self._texts.append(as_str(delta.get("text")))
        self._inputs.append(as_str(as_dict(delta.get("toolUse")).get("input")))

    def whole(self) -> dict[str, Any]:
        if self._call:
            return {"toolUse": {**self._call, "input": "".join(self._inputs) or {}}}
        text = "".join(self._texts)
        return {"text": text} if text else {}


def _fold_answer(answer: dict[str, Any], message: dict[str, Any]) -> ResponseMeaning:
    usage = as_dict(answer.get("usage"))
    blocks = as_dicts(message.get("content"))
    text, calls = _join(blocks, ""), _read_calls(blocks)
    read, written = as_int(usage.get("cacheReadInputTokens")), as_int(usage.get("cacheWriteInputTokens"))
    fresh = as_int(usage.get("inputTokens"))
    reason = as_str(answer.get("stopReason"))
    return ResponseMeaning(
        tokens_in=fresh if fresh < 0 else fresh + max(read, 0) + max(written, 0),
        tokens_out=as_int(usage.get("outputTokens")),
        tokens_cache_read=read,
        tokens_cache_write=written,
        finish_reason=reason,
        text=text,
        tool_calls=calls,
        is_complete=bool(reason),
        messages=(Message(as_str(message.get("role")) or "assistant", text, calls),) if text or calls or reason else (),
    )


def _join(blocks: list[dict[str, Any]], separator: str) -> str:
    return separator.join(as_str(block.get("text")) for block in blocks if block.get("text"))


def _read_calls(blocks: list[dict[str, Any]]) -> tuple[ToolCall, ...]:
    calls = []
    for block in blocks:
        call = as_dict(block.get("toolUse"))
        if call:
            given = call.get("input", {})
            arguments = given if isinstance(given, str) else to_json(given)
            calls.append(ToolCall(as_str(call.get("toolUseId")), as_str(call.get("name")), arguments))
    return tuple(calls)


def _read_result(result: dict[str, Any]) -> Message:
    parts = as_dicts(result.get("content"))
    texts = [as_str(part.get("text")) or (to_json(part["json"]) if "json" in part else "") for part in parts]
    return Message("tool", "\n".join(t for t in texts if t), tool_call_id=as_str(result.get("toolUseId")))


def _image_url(image: dict[str, Any]) -> str:
    source = as_dict(image.get("source"))
    if "bytes" in source:
        return f"data:image/{as_str(image.get('format'))};base64,{as_str(source['bytes'])}"
    return as_str(as_dict(source.get("s3Location")).get("uri"))
