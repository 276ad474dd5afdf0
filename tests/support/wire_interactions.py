"""Google's interactions on the wire: an object with steps, or events that start, extend and end them."""

from __future__ import annotations

import json

from support.wire_openai import sse
from support.wire_text import Json, Line, count_tokens, make_id, make_text, read_turn, resolve_model, split_text


def answer_interaction(body: Json) -> Json:
    """Return a finished interaction."""
    names = [tool["name"] for tool in body.get("tools") or []]
    turn = read_turn([Line("user", body["input"])], names, "")
    steps: list[Json] = [
        {"type": "function_call", "id": make_id("", 8), "name": o.name, "arguments": json.loads(o.arguments)}
        for o in turn.tool_orders
    ] or [{"type": "model_output", "content": [{"type": "text", "text": make_text(turn)}]}]
    asked, said = count_tokens(body["input"]), count_tokens(json.dumps(steps, ensure_ascii=False))
    return {
        "id": make_id("interactions/"),
        "object": "interaction",
        "model": resolve_model(body["model"]),
        "status": "completed",
        "created": "2026-10-01T09:04:00Z",
        "steps": [{"type": "thought", "signature": "c2ln", "summary": [{"type": "text", "text": "hm"}]}, *steps],
        "usage": {"total_input_tokens": asked, "total_output_tokens": said, "total_tokens": asked + said},
    }


def stream_interaction(body: Json) -> list[bytes]:
    """Return a finished interaction as server-sent events."""
    final = answer_interaction(body)
    steps, head = final.pop("steps"), {k: final[k] for k in ("id", "object", "model")}
    events: list[Json] = [
        {"event_type": "interaction.created", "interaction": {**head, "status": "in_progress"}},
        {"event_type": "interaction.status_update", "interaction_id": final["id"], "status": "in_progress"},
    ]
    for index, step in enumerate(steps):
        kept = {k: v for k, v in step.items() if k not in ("content", "arguments")}
        is_call = step["type"] == "function_call"
        begun = {**kept, "arguments": {}} if is_call else kept
        events.append({"event_type": "step.start", "index": index, "step": begun})
        if is_call:
            pieces = split_text(json.dumps(step["arguments"], ensure_ascii=False), 3)
            deltas: list[Json] = [{"type": "arguments_delta", "arguments": piece} for piece in pieces]
        elif step["type"] == "thought":
            deltas = [{"type": "thought_summary", "content": {"type": "text", "text": "hm"}}]
        else:
            deltas = [{"type": "text", "text": piece} for piece in split_text(step["content"][0]["text"])]
        events += [{"event_type": "step.delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"event_type": "step.stop", "index": index})
    events.append({"event_type": "interaction.completed", "interaction": final})
    return [sse(event) for event in events]
