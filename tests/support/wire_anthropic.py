"""Anthropic's wire format: messages, as one object or as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from support.wire_openai import sse
from support.wire_text import (
    Json,
    Line,
    Turn,
    count_tokens,
    flatten_content,
    make_id,
    make_text,
    read_turn,
    resolve_model,
    split_text,
)


def _read_lines(messages: list[Json]) -> Iterator[Line]:
    for message in messages:
        content: Any = message.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
        results = [b for b in blocks if b.get("type") == "tool_result"]
        for block in results:
            yield Line("tool", flatten_content(block.get("content")))
        rest = [b for b in blocks if b.get("type") == "text"]
        has_calls = any(b.get("type") == "tool_use" for b in blocks)
        if rest or has_calls:
            yield Line(message.get("role", ""), flatten_content(rest), is_tool_request=has_calls)


def _read_turn(body: Json) -> Turn:
    tools = [t["name"] for t in body.get("tools") or []]
    is_off = (body.get("tool_choice") or {}).get("type") == "none"
    return read_turn(list(_read_lines(body.get("messages", []))), [] if is_off else tools, "toolu_")


def count_message_tokens(body: Json) -> Json:
    """The answer of `/v1/messages/count_tokens`."""
    return {"input_tokens": count_tokens(json.dumps(body.get("messages", []), ensure_ascii=False))}


def answer_messages(body: Json) -> Json:
    """A `message` object."""
    turn = _read_turn(body)
    content: list[Json] = [
        {"type": "tool_use", "id": o.call_id, "name": o.name, "input": json.loads(o.arguments)}
        for o in turn.tool_orders
    ] or [{"type": "text", "text": make_text(turn), "citations": None}]
    return {
        "id": make_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": resolve_model(body.get("model", "")),
        "content": content,
        "stop_reason": "tool_use" if turn.tool_orders else "end_turn",
        "stop_sequence": None,
        "usage": {
            **count_message_tokens(body),
            "output_tokens": count_tokens(json.dumps(content, ensure_ascii=False)),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "service_tier": "standard",
        },
    }


def _block_events(block: Json, at: int) -> Iterator[Json]:
    if block["type"] == "tool_use":
        yield {"type": "content_block_start", "index": at, "content_block": {**block, "input": {}}}
        deltas = [
            {"type": "input_json_delta", "partial_json": piece}
            for piece in split_text(json.dumps(block["input"], ensure_ascii=False), 3)
        ]
    else:
        yield {"type": "content_block_start", "index": at, "content_block": {**block, "text": ""}}
        deltas = [{"type": "text_delta", "text": piece} for piece in split_text(block["text"])]
    for delta in deltas:
        yield {"type": "content_block_delta", "index": at, "delta": delta}
    yield {"type": "content_block_stop", "index": at}


def stream_messages(body: Json) -> list[bytes]:
    """The server-sent events of a message."""
    final = answer_messages(body)
    usage = final["usage"]
    opening = {**final, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    payloads: list[Json] = [{"type": "message_start", "message": opening}, {"type": "ping"}]
    for at, block in enumerate(final["content"]):
        payloads.extend(_block_events(block, at))
    stop = {"stop_reason": final["stop_reason"], "stop_sequence": None}
    said = {"output_tokens": usage["output_tokens"]}
    payloads.append({"type": "message_delta", "delta": stop, "usage": said})
    payloads.append({"type": "message_stop"})
    return [sse(p, p["type"]) for p in payloads]
