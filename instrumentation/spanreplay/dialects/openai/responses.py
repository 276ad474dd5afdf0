"""OpenAI responses: items in, items out, and a stream of typed events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import Message, ResponseMeaning, ToolCall
from spanreplay.dialects._wire import as_dict, as_dicts, as_int, as_str, error_text, join_texts, to_json

__all__ = ["OpenAIResponses"]

_SYSTEM_ROLES = ("system", "developer")
_TEXT_KINDS = ("input_text", "output_text", "text", "refusal", "summary_text")
_ENDS = ("response.completed", "response.incomplete", "response.failed")


class OpenAIResponses(Dialect):
    """POST …/responses."""

    name: ClassVar[str] = "openai.responses"
    keyspec: ClassVar[str] = "openai_responses/1"
    system: ClassVar[str] = "openai"
    content_fields: ClassVar[frozenset[str]] = frozenset({"model", "input", "instructions", "tools"})

    def accepts(self, body: Any) -> bool:
        """A request has input, a stored prompt or a previous response, and names a model (optional with a prompt)."""
        fields = as_dict(body)
        has_input = isinstance(fields.get("input"), str | list)
        return (has_input or "prompt" in fields or "previous_response_id" in fields) and (
            isinstance(fields.get("model"), str) or bool(self.url_model) or "prompt" in fields
        )

    def read_system(self, body: Mapping[str, Any]) -> list[str]:
        """The instructions, then the input's messages with role system or developer."""
        items = as_dicts(body.get("input"))
        instructions = as_str(body.get("instructions"))
        texts = [join_texts(i.get("content"), *_TEXT_KINDS) for i in items if i.get("role") in _SYSTEM_ROLES]
        return [instructions, *texts] if instructions else texts

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The input items; a string is one user message."""
        items = body.get("input")
        if isinstance(items, str):
            return [{"role": "user", "content": items}]
        return items if isinstance(items, list) else []

    def read_message(self, item: Any) -> list[Message]:
        """Read one item: a message, a tool call, a tool's output."""
        fields = as_dict(item)
        kind = as_str(fields.get("type")) or "message"
        if kind == "message":
            parts = as_dicts(fields.get("content"))
            urls = tuple(as_str(p.get("image_url")) for p in parts if as_str(p.get("image_url")))
            text = join_texts(fields.get("content"), *_TEXT_KINDS)
            return [Message(as_str(fields.get("role")) or "assistant", text, image_urls=urls)]
        if kind.endswith("_call_output"):
            output = fields.get("output")
            text = output if isinstance(output, str) else join_texts(output, *_TEXT_KINDS) or to_json(output)
            return [Message("tool", text, tool_call_id=as_str(fields.get("call_id")))]
        if kind.endswith("_call"):
            return [Message("assistant", tool_calls=(_read_call(fields),))]
        if kind == "reasoning":
            text = join_texts(fields.get("summary"), *_TEXT_KINDS)
            return [Message("assistant", text)] if text else []
        return []

    def read_result_ids(self, body: Mapping[str, Any]) -> list[str]:
        """Return the call ids in output items."""
        items = as_dicts(body.get("input"))
        outputs = [item for item in items if as_str(item.get("type")).endswith("_call_output")]
        return [as_str(item.get("call_id")) for item in outputs if item.get("call_id")]

    def tool_schemas(self, body: Mapping[str, Any]) -> list[Any]:
        """The tools."""
        return as_dicts(body.get("tools"))

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read a response object; for a truncated stream, the finished items and the text so far."""
        if not is_stream:
            return self.fold_response(documents[0] if documents else {})
        last: dict[str, Any] = {}
        items: dict[int, dict[str, Any]] = {}
        texts: dict[int, str] = {}
        error = ""
        for event in documents:
            kind = as_str(event.get("type"))
            last = as_dict(event.get("response")) or last
            index = as_int(event.get("output_index"))
            if kind in _ENDS:
                return self.fold_response(last)
            if kind == "response.output_item.done":
                items[index] = as_dict(event.get("item"))
            elif kind == "response.output_text.delta":
                texts[index] = texts.get(index, "") + as_str(event.get("delta"))
            elif kind == "error":
                error = ": ".join(filter(None, (as_str(event.get("code")), as_str(event.get("message"))))) or "error"
        for index, text in texts.items():
            items.setdefault(index, {"type": "message", "role": "assistant", "content": text})
        return self.fold_response({**last, "output": [items[index] for index in sorted(items)]}, error=error)

    def fold_response(self, response: dict[str, Any], error: str = "") -> ResponseMeaning:
        """Read a response object."""
        usage = as_dict(response.get("usage"))
        status = as_str(response.get("status"))
        messages = [message for item in as_dicts(response.get("output")) for message in self.read_message(item)]
        calls = tuple(call for message in messages for call in message.tool_calls)
        spoken = [i for i in as_dicts(response.get("output")) if i.get("type") == "message"]
        text = "".join(join_texts(item.get("content"), *_TEXT_KINDS) for item in spoken)
        reason = as_str(as_dict(response.get("incomplete_details")).get("reason"))
        return ResponseMeaning(
            model=as_str(response.get("model")),
            fingerprint=as_str(response.get("system_fingerprint")),
            response_id=as_str(response.get("id")),
            tokens_in=as_int(usage.get("input_tokens")),
            tokens_out=as_int(usage.get("output_tokens")),
            tokens_cache_read=as_int(as_dict(usage.get("input_tokens_details")).get("cached_tokens")),
            tokens_reasoning=as_int(as_dict(usage.get("output_tokens_details")).get("reasoning_tokens")),
            finish_reason=reason or status,
            text=text,
            tool_calls=calls,
            error=error or error_text(0, response, ()),
            is_complete=status in ("completed", "incomplete", "failed", "cancelled"),
            messages=_merge(messages),
        )


def _read_call(fields: dict[str, Any]) -> ToolCall:
    identity = as_str(fields.get("call_id")) or as_str(fields.get("id"))
    name = as_str(fields.get("name")) or as_str(fields.get("type")).removesuffix("_call")
    arguments = as_str(fields.get("arguments")) or as_str(fields.get("input"))
    if not arguments and "action" in fields:
        arguments = to_json(fields["action"])
    return ToolCall(identity, name, arguments)


def _merge(messages: list[Message]) -> tuple[Message, ...]:
    """Merge output items into one assistant message, as in other protocols."""
    if len(messages) < 2:
        return tuple(messages)
    texts = [message.text for message in messages if message.text]
    calls = tuple(call for message in messages for call in message.tool_calls)
    return (Message("assistant", "\n".join(texts), calls),)
