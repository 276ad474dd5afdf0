"""Ollama's native chat: it streams JSON lines by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import Message, ResponseMeaning, ToolCall
from spanreplay.dialects._wire import as_dict, as_dicts, as_int, as_str, to_json

__all__ = ["OllamaChat", "fold_lines"]

_SYSTEM: Final = "system"


class OllamaChat(Dialect):
    """POST …/api/chat."""

    name: ClassVar[str] = "ollama.chat"
    keyspec: ClassVar[str] = "ollama_chat/1"
    system: ClassVar[str] = "ollama"
    content_fields: ClassVar[frozenset[str]] = frozenset({"model", "messages", "tools"})
    nested_parameters: ClassVar[tuple[str, ...]] = ("options",)
    is_stream_by_default: ClassVar[bool] = True

    def accepts(self, body: Any) -> bool:
        """A request has messages and names a model."""
        fields = as_dict(body)
        return isinstance(fields.get("messages"), list) and isinstance(fields.get("model"), str)

    def read_system(self, body: Mapping[str, Any]) -> list[str]:
        """Texts of the messages with role system."""
        return [as_str(m.get("content")) for m in as_dicts(body.get("messages")) if m.get("role") == _SYSTEM]

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The messages."""
        messages = body.get("messages")
        return messages if isinstance(messages, list) else []

    def read_message(self, item: Any) -> list[Message]:
        """Read one message; images are base64 of an unstated format."""
        fields = as_dict(item)
        images = fields.get("images")
        return [
            Message(
                role=as_str(fields.get("role")),
                text=as_str(fields.get("content")),
                tool_calls=_read_calls(fields),
                tool_call_id=as_str(fields.get("tool_call_id")),
                name=as_str(fields.get("tool_name")) or as_str(fields.get("name")),
                image_urls=tuple(f"data:;base64,{each}" for each in images if isinstance(each, str))
                if isinstance(images, list)
                else (),
            )
        ]

    def read_result_ids(self, body: Mapping[str, Any]) -> list[str]:
        """Return the call ids in messages with role tool; older servers send no ids."""
        found = (as_str(message.get("tool_call_id")) for message in as_dicts(body.get("messages")))
        return [each for each in found if each]

    def tool_schemas(self, body: Mapping[str, Any]) -> list[Any]:
        """The tools."""
        return as_dicts(body.get("tools"))

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read an answer, or the lines of one."""
        messages = [as_dict(document.get("message")) for document in documents]
        text = "".join(as_str(message.get("content")) for message in messages)
        calls = tuple(call for message in messages for call in _read_calls(message))
        return fold_lines(documents, text, calls)


def fold_lines(documents: Sequence[dict[str, Any]], text: str, calls: tuple[ToolCall, ...] = ()) -> ResponseMeaning:
    """Build the response from the text, the calls and the last line, which has the usage."""
    last = documents[-1] if documents else {}
    is_done = last.get("done") is True
    return ResponseMeaning(
        model=as_str(last.get("model")),
        tokens_in=as_int(last.get("prompt_eval_count")),
        tokens_out=as_int(last.get("eval_count")),
        finish_reason=as_str(last.get("done_reason")) or ("stop" if is_done else ""),
        text=text,
        tool_calls=calls,
        is_complete=is_done,
        messages=(Message("assistant", text, calls),) if text or calls or is_done else (),
    )


def _read_calls(fields: dict[str, Any]) -> tuple[ToolCall, ...]:
    calls = []
    for call in as_dicts(fields.get("tool_calls")):
        function = as_dict(call.get("function"))
        given = function.get("arguments", {})
        arguments = given if isinstance(given, str) else to_json(given)
        calls.append(ToolCall(as_str(call.get("id")), as_str(function.get("name")), arguments))
    return tuple(calls)
