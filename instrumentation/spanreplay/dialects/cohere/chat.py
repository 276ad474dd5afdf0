"""Cohere's chat, version 2: messages in OpenAI's format, answers in Cohere's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from spanreplay.dialects._meaning import Message, ResponseMeaning, ToolCall
from spanreplay.dialects._wire import as_dict, as_dicts, as_int, as_str
from spanreplay.dialects.openai.chat import OpenAIChat

__all__ = ["CohereChat", "read_usage"]


class CohereChat(OpenAIChat):
    """POST …/v2/chat."""

    name: ClassVar[str] = "cohere.chat"
    keyspec: ClassVar[str] = "cohere_chat/1"
    system: ClassVar[str] = "cohere"

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read an answer, or the events of one."""
        if not is_stream:
            answer = documents[0] if documents else {}
            return _fold_answer(answer, as_str(answer.get("finish_reason")))
        return _fold_events(documents)


def _fold_events(events: Sequence[dict[str, Any]]) -> ResponseMeaning:
    answer: dict[str, Any] = {}
    texts: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    end: dict[str, Any] = {}
    for event in events:
        kind = as_str(event.get("type"))
        message = as_dict(as_dict(event.get("delta")).get("message"))
        if kind == "message-start":
            answer["id"] = event.get("id")
        elif kind in ("content-start", "content-delta"):
            texts.extend(_pieces(message))
        elif kind in ("tool-call-start", "tool-call-delta"):
            call = as_dict(message.get("tool_calls"))
            held = calls.setdefault(as_int(event.get("index")), {"id": "", "function": {"name": "", "arguments": ""}})
            held["id"] = held["id"] or as_str(call.get("id"))
            for name in ("name", "arguments"):
                held["function"][name] += as_str(as_dict(call.get("function")).get(name))
        elif kind == "message-end":
            end = as_dict(event.get("delta"))
    answer["usage"] = end.get("usage")
    answer["error"] = end.get("error")
    answer["message"] = {"content": "".join(texts), "tool_calls": [calls[index] for index in sorted(calls)]}
    return _fold_answer(answer, as_str(end.get("finish_reason")))


def _pieces(message: dict[str, Any]) -> Iterator[str]:
    content = message.get("content")
    for part in as_dicts(content) if isinstance(content, list) else [as_dict(content)]:
        yield as_str(part.get("text"))  # a thought has no `text`


def _fold_answer(answer: dict[str, Any], finish_reason: str) -> ResponseMeaning:
    message = as_dict(answer.get("message"))
    content = message.get("content")
    text = content if isinstance(content, str) else "".join(_pieces(message)) if content else ""
    calls = tuple(
        ToolCall(as_str(call.get("id")), as_str(function.get("name")), as_str(function.get("arguments")))
        for call in as_dicts(message.get("tool_calls"))
        for function in (as_dict(call.get("function")),)
    )
    usage = as_dict(answer.get("usage"))
    tokens_in, tokens_out = read_usage(usage)
    return ResponseMeaning(
        response_id=as_str(answer.get("id")),
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        tokens_cache_read=as_int(usage.get("cached_tokens")),
        finish_reason=finish_reason,
        text=text,
        tool_calls=calls,
        error=as_str(answer.get("error")) or ("error" if finish_reason == "ERROR" else ""),
        is_complete=bool(finish_reason),
        messages=(Message("assistant", text, calls),) if text or calls or finish_reason else (),
    )


def read_usage(usage: dict[str, Any]) -> tuple[int, int]:
    """Return input and output tokens: as processed, else as billed. Cohere's numbers are floats."""
    tokens, billed = as_dict(usage.get("tokens")), as_dict(usage.get("billed_units"))
    read, written = (_whole(tokens.get(name), billed.get(name)) for name in ("input_tokens", "output_tokens"))
    return read, written


def _whole(*values: Any) -> int:
    found = next((v for v in values if isinstance(v, int | float) and not isinstance(v, bool)), None)
    return int(found) if found is not None and found == found and abs(found) < 2**53 else -1
