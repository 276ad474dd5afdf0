"""Cohere's chat, version 1: one message and a separate history; also on Bedrock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import Message, ResponseMeaning, ToolCall
from spanreplay.dialects._wire import as_dict, as_dicts, as_str, to_json
from spanreplay.dialects.cohere.chat import read_usage

__all__ = ["CohereChatV1"]

_ROLES: Final = {"CHATBOT": "assistant", "USER": "user", "SYSTEM": "system", "TOOL": "tool"}


class CohereChatV1(Dialect):
    """POST …/v1/chat, and a Cohere model's body on Bedrock."""

    name: ClassVar[str] = "cohere.chat.v1"
    keyspec: ClassVar[str] = "cohere_chat_v1/1"
    system: ClassVar[str] = "cohere"
    content_fields: ClassVar[frozenset[str]] = frozenset(
        {"model", "message", "chat_history", "preamble", "tools", "tool_results", "documents"}
    )

    def accepts(self, body: Any) -> bool:
        """A request has a message, and no `messages` of another protocol."""
        fields = as_dict(body)
        return isinstance(fields.get("message"), str) and "messages" not in fields

    def read_system(self, body: Mapping[str, Any]) -> list[str]:
        """The preamble, then the history's system messages."""
        history = as_dicts(body.get("chat_history"))
        said = [as_str(turn.get("message")) for turn in history if turn.get("role") == "SYSTEM"]
        return [text for text in (as_str(body.get("preamble")), *said) if text]

    def conversation(self, body: Mapping[str, Any]) -> list[Any]:
        """The history, tool results, the message; a turn with results only has an empty message."""
        results = as_dicts(body.get("tool_results"))
        brought = [{"role": "TOOL", "tool_results": results}] if results else []
        message = [{"role": "USER", "message": body["message"]}] if body.get("message") else []
        return [*as_dicts(body.get("chat_history")), *brought, *message]

    def read_message(self, item: Any) -> list[Message]:
        """Read one turn; each tool result in it becomes a separate message."""
        fields = as_dict(item)
        role = as_str(fields.get("role"))
        results = [_read_result(each) for each in as_dicts(fields.get("tool_results"))]
        if results:
            return results
        text = as_str(fields.get("message")) or as_str(fields.get("text"))
        return [Message(_ROLES.get(role, role), text, _read_calls(fields))]

    def tool_schemas(self, body: Mapping[str, Any]) -> list[Any]:
        """The tools."""
        return as_dicts(body.get("tools"))

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read an answer, or the events of one; the last event has the full answer."""
        if not is_stream and documents and "event_type" not in documents[0]:
            return _fold_answer(documents[0], as_str(documents[0].get("finish_reason")) or "COMPLETE")
        answer: dict[str, Any] = {}
        texts: list[str] = []
        for event in documents:
            kind = as_str(event.get("event_type"))
            if kind == "stream-start":
                answer["generation_id"] = event.get("generation_id")
            elif kind == "text-generation":
                texts.append(as_str(event.get("text")))
            elif kind == "tool-calls-generation":
                answer["tool_calls"] = event.get("tool_calls")
            elif kind == "stream-end":
                whole = {"text": "".join(texts), **answer, **as_dict(event.get("response"))}
                return _fold_answer(whole, as_str(event.get("finish_reason")) or "COMPLETE")
        return _fold_answer({**answer, "text": "".join(texts)}, "")


def _fold_answer(answer: dict[str, Any], finish_reason: str) -> ResponseMeaning:
    text, calls = as_str(answer.get("text")), _read_calls(answer)
    tokens_in, tokens_out = read_usage(as_dict(answer.get("meta")))
    return ResponseMeaning(
        response_id=as_str(answer.get("response_id")) or as_str(answer.get("generation_id")),
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        finish_reason=finish_reason,
        text=text,
        tool_calls=calls,
        error="error" if finish_reason in ("ERROR", "ERROR_LIMIT", "ERROR_TOXIC") else "",
        is_complete=bool(finish_reason),
        messages=(Message("assistant", text, calls),) if text or calls or finish_reason else (),
    )


def _read_calls(fields: dict[str, Any]) -> tuple[ToolCall, ...]:
    calls = as_dicts(fields.get("tool_calls"))
    return tuple(ToolCall("", as_str(c.get("name")), to_json(c.get("parameters", {}))) for c in calls)


def _read_result(fields: dict[str, Any]) -> Message:
    return Message("tool", to_json(fields.get("outputs")), name=as_str(as_dict(fields.get("call")).get("name")))
