"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from spanreplay.testing.mock.answers import Answer, Failure
from spanreplay.testing.mock.wires._wire import Json, Wire, argument_pieces, event, text_pieces, usage_of

_ERRORS: Final = {
    "rate_limit": "rate_limit_error",
    "auth": "authentication_error",
    "server": "api_error",
    "overloaded": "overloaded_error",
    "invalid_request": "invalid_request_error",
}


class Messages(Wire):
    """POST /v1/messages."""

    sdk = "anthropic"

    def whole(self, answer: Answer, body: Json, call_id: str) -> Json:
        """A `message`."""
        usage = usage_of(answer, body.get("messages", []))
        blocks: list[Json] = [{"type": "text", "text": answer.text}] if answer.text or not answer.tool_calls else []
        blocks += [{"type": "tool_use", "id": c.call_id, "name": c.name, "input": c.value} for c in answer.tool_calls]
        return {
            "id": f"msg_{call_id}",
            "type": "message",
            "role": "assistant",
            "model": answer.model or body.get("model", ""),
            "content": blocks,
            "stop_reason": "tool_use" if answer.tool_calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens},
        }

    def stream(self, answer: Answer, body: Json, call_id: str) -> list[str]:
        """Events, each named by its type."""
        final = self.whole(answer, body, call_id)
        opening = {**final, "content": [], "stop_reason": None, "usage": {**final["usage"], "output_tokens": 0}}
        payloads: list[Json] = [{"type": "message_start", "message": opening}]
        for at, block in enumerate(final["content"]):
            payloads += _block_events(answer, block, at, len(final["content"]) - len(answer.tool_calls))
        payloads += [
            {
                "type": "message_delta",
                "delta": {"stop_reason": final["stop_reason"], "stop_sequence": None},
                "usage": {"output_tokens": final["usage"]["output_tokens"]},
            },
            {"type": "message_stop"},
        ]
        return [event(each, each["type"]) for each in payloads]

    def error(self, failure: Failure) -> Json:
        """The body of an error."""
        kind = _ERRORS.get(failure.kind, "api_error")
        return {"type": "error", "error": {"type": kind, "message": failure.message}}


def _block_events(answer: Answer, block: Json, at: int, texts: int) -> Iterator[Json]:
    if block["type"] == "text":
        empty: Json = {"text": ""}
        deltas = [{"type": "text_delta", "text": piece} for piece in text_pieces(answer)]
    else:
        empty = {"input": {}}
        pieces = argument_pieces(answer, at - texts)
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    yield {"type": "content_block_start", "index": at, "content_block": {**block, **empty}}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": at, "delta": delta}
    yield {"type": "content_block_stop", "index": at}
