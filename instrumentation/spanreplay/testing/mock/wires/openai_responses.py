"""OpenAI's responses."""

from __future__ import annotations

from collections.abc import Iterator

from spanreplay.testing.mock.answers import Answer
from spanreplay.testing.mock.wires._wire import Json, argument_pieces, event, text_pieces, usage_of
from spanreplay.testing.mock.wires.openai_chat import CREATED, OpenAIWire


class Responses(OpenAIWire):
    """POST /responses."""

    def whole(self, answer: Answer, body: Json, call_id: str) -> Json:
        """A `response`."""
        usage = usage_of(answer, body.get("input", ""))
        return {
            "id": f"resp_{call_id}",
            "object": "response",
            "created_at": CREATED,
            "status": "completed",
            "model": answer.model or body.get("model", ""),
            "output": list(_items(answer, call_id)),
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": body.get("temperature"),
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools", []),
            "top_p": body.get("top_p"),
            "text": body.get("text") or {"format": {"type": "text"}},
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.total_tokens,
            },
        }

    def stream(self, answer: Answer, body: Json, call_id: str) -> list[str]:
        """Numbered events; the last one contains the whole response."""
        final = self.whole(answer, body, call_id)
        opening = {**final, "status": "in_progress", "output": [], "usage": None}
        payloads: list[Json] = [{"type": "response.created", "response": opening}]
        for at, item in enumerate(final["output"]):
            payloads += _item_events(answer, item, at)
        payloads.append({"type": "response.completed", "response": final})
        return [event({**each, "sequence_number": at}, each["type"]) for at, each in enumerate(payloads)]


def _items(answer: Answer, call_id: str) -> Iterator[Json]:
    for number, call in enumerate(answer.tool_calls):
        yield {
            "id": f"fc_{call_id}_{number}",
            "type": "function_call",
            "status": "completed",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments,
        }
    if answer.text or not answer.tool_calls:
        yield {
            "id": f"msg_{call_id}",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": answer.text, "annotations": []}],
        }


def _item_events(answer: Answer, item: Json, at: int) -> Iterator[Json]:
    where = {"item_id": item["id"], "output_index": at}
    if item["type"] == "function_call":
        yield _added({**item, "arguments": ""}, at)
        for piece in argument_pieces(answer, at):
            yield {"type": "response.function_call_arguments.delta", **where, "delta": piece}
        yield {
            "type": "response.function_call_arguments.done",
            **where,
            "name": item["name"],
            "arguments": item["arguments"],
        }
    else:
        part = item["content"][0]
        where["content_index"] = 0
        yield _added({**item, "content": []}, at)
        yield {"type": "response.content_part.added", **where, "part": {**part, "text": ""}}
        for piece in text_pieces(answer):
            yield {"type": "response.output_text.delta", **where, "delta": piece, "logprobs": []}
        yield {"type": "response.output_text.done", **where, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **where, "part": part}
    yield {"type": "response.output_item.done", "output_index": at, "item": item}


def _added(item: Json, at: int) -> Json:
    return {"type": "response.output_item.added", "output_index": at, "item": {**item, "status": "in_progress"}}
