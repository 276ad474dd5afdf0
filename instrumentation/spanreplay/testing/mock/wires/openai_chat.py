"""OpenAI's chat completions."""

from __future__ import annotations

from typing import Any

from spanreplay.testing.mock.answers import Answer, Failure
from spanreplay.testing.mock.wires._wire import Json, Wire, argument_pieces, event, text_pieces, usage_of

CREATED = 1_700_000_000
"""Seconds since 1970; fixed, so that a mock's answers don't depend on the time."""


class OpenAIWire(Wire):
    """Base of all OpenAI endpoints."""

    sdk = "openai"

    def error(self, failure: Failure) -> Json:
        """The body of an error."""
        return {"error": {"message": failure.message, "type": failure.kind, "param": None, "code": failure.kind}}


class Chat(OpenAIWire):
    """POST /chat/completions."""

    def whole(self, answer: Answer, body: Json, call_id: str) -> Json:
        """A `chat.completion`."""
        message: Json = {"role": "assistant", "content": answer.text or None, "refusal": None}
        if answer.tool_calls:
            message["tool_calls"] = [_tool(c.call_id, c.name, c.arguments) for c in answer.tool_calls]
        choices = [
            {"index": index, "message": message, "logprobs": None, "finish_reason": _reason(answer)}
            for index in range(body.get("n") or 1)
        ]
        return {**_head(answer, body, call_id, ""), "choices": choices, "usage": _usage(answer, body)}

    def stream(self, answer: Answer, body: Json, call_id: str) -> list[str]:
        """Chunks, then [DONE]."""
        head = _head(answer, body, call_id, ".chunk")

        def chunk(delta: Json, reason: str | None = None) -> str:
            return event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

        events = [chunk({"role": "assistant", "content": "" if answer.text else None})]
        events += [chunk({"content": piece}) for piece in text_pieces(answer) if answer.text]
        for number, call in enumerate(answer.tool_calls):
            events.append(chunk({"tool_calls": [{"index": number, **_tool(call.call_id, call.name, "")}]}))
            for piece in argument_pieces(answer, number):
                events.append(chunk({"tool_calls": [{"index": number, "function": {"arguments": piece}}]}))
        events.append(chunk({}, _reason(answer)))
        if (body.get("stream_options") or {}).get("include_usage"):
            events.append(event({**head, "choices": [], "usage": _usage(answer, body)}))
        return [*events, event("[DONE]")]


def _head(answer: Answer, body: Json, call_id: str, suffix: str) -> Json:
    return {
        "id": f"chatcmpl-{call_id}",
        "object": f"chat.completion{suffix}",
        "created": CREATED,
        "model": answer.model or body.get("model", ""),
        "system_fingerprint": "fp_mock",
    }


def _tool(call_id: str, name: str, arguments: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _reason(answer: Answer) -> str:
    return "tool_calls" if answer.tool_calls else "stop"


def _usage(answer: Answer, body: Json) -> dict[str, Any]:
    usage = usage_of(answer, body.get("messages", []))
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
