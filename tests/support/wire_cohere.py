"""Cohere's wire format: chat versions 1 and 2, embed and rerank."""

from __future__ import annotations

import json
from typing import Any

from support.wire_openai import read_chat_turn, sse
from support.wire_text import (
    Json,
    Line,
    Turn,
    count_tokens,
    make_id,
    make_text,
    make_vector,
    read_turn,
    split_text,
)

EMBEDDING_SIZE = 8


def _usage(body: Json, said: Any) -> Json:
    asked = count_tokens(json.dumps(body.get("messages") or body.get("message"), ensure_ascii=False))
    written = count_tokens(json.dumps(said, ensure_ascii=False))
    return {
        "billed_units": {"input_tokens": float(asked), "output_tokens": float(written)},
        "tokens": {"input_tokens": float(asked + 60), "output_tokens": float(written + 2)},
    }


# ── Version 2 ───────────────────────────────────────────────────────────────────────────────────────
def _answer_message(turn: Turn) -> Json:
    if turn.tool_orders:
        calls = [
            {"id": o.call_id, "type": "function", "function": {"name": o.name, "arguments": o.arguments}}
            for o in turn.tool_orders
        ]
        return {"role": "assistant", "tool_plan": "I will use a tool.", "tool_calls": calls}
    return {"role": "assistant", "content": [{"type": "text", "text": make_text(turn)}]}


def answer_chat(body: Json) -> Json:
    """An answer of /v2/chat."""
    message = _answer_message(read_chat_turn(body))
    reason = "TOOL_CALL" if "tool_calls" in message else "COMPLETE"
    return {"id": make_id("", 36), "finish_reason": reason, "message": message, "usage": _usage(body, message)}


def _content_events(text: str) -> list[Json]:
    def delta(kind: str, **content: str) -> Json:
        return {"type": kind, "index": 0, "delta": {"message": {"content": content}}}

    pieces = [delta("content-delta", text=piece) for piece in split_text(text)]
    return [delta("content-start", type="text", text=""), *pieces, {"type": "content-end", "index": 0}]


def _call_events(calls: list[Json]) -> list[Json]:
    events: list[Json] = [{"type": "tool-plan-delta", "delta": {"message": {"tool_plan": "I will use a tool."}}}]
    for index, call in enumerate(calls):
        start = {**call, "function": {"name": call["function"]["name"], "arguments": ""}}
        events.append({"type": "tool-call-start", "index": index, "delta": {"message": {"tool_calls": start}}})
        for piece in split_text(call["function"]["arguments"], 3):
            part = {"message": {"tool_calls": {"function": {"arguments": piece}}}}
            events.append({"type": "tool-call-delta", "index": index, "delta": part})
        events.append({"type": "tool-call-end", "index": index})
    return events


def stream_chat(body: Json) -> list[bytes]:
    """The server-sent events of /v2/chat."""
    final = answer_chat(body)
    message = final["message"]
    start = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
    events = [
        {"type": "message-start", "id": final["id"], "delta": {"message": start}},
        *(_call_events(message["tool_calls"]) if "tool_calls" in message else []),
        *(_content_events(message["content"][0]["text"]) if "content" in message else []),
        {"type": "message-end", "delta": {"finish_reason": final["finish_reason"], "usage": final["usage"]}},
    ]
    return [sse(event, event["type"]) for event in events]


# ── Version 1 ───────────────────────────────────────────────────────────────────────────────────────
def _read_turn_v1(body: Json) -> Turn:
    roles = {"CHATBOT": "assistant", "USER": "user"}
    lines = [
        Line(roles.get(turn["role"], "system"), turn.get("message", ""), bool(turn.get("tool_calls")))
        for turn in body.get("chat_history") or []
    ]
    if body.get("message"):
        lines.append(Line("user", body["message"]))
    results = body.get("tool_results") or []
    if results:
        lines.append(Line("assistant", "", is_tool_request=True))
        lines.extend(Line("tool", json.dumps(result["outputs"])) for result in results)
    return read_turn(lines, [tool["name"] for tool in body.get("tools") or []], "")


def answer_chat_v1(body: Json) -> Json:
    """An answer of /v1/chat."""
    turn = _read_turn_v1(body)
    calls = [{"name": o.name, "parameters": json.loads(o.arguments)} for o in turn.tool_orders]
    text = "" if calls else make_text(turn)
    usage = _usage(body, [text, calls])
    return {
        "response_id": make_id("", 36),
        "generation_id": make_id("", 36),
        "text": text,
        "finish_reason": "COMPLETE",
        **({"tool_calls": calls} if calls else {}),
        "meta": {"api_version": {"version": "1"}, **usage},
    }


def stream_chat_v1(body: Json) -> list[bytes]:
    """The JSON lines of /v1/chat."""
    final = answer_chat_v1(body)
    events: list[Json] = [{"event_type": "stream-start", "generation_id": final["generation_id"]}]
    if "tool_calls" in final:
        events.append({"event_type": "tool-calls-generation", "tool_calls": final["tool_calls"]})
    else:
        events.extend({"event_type": "text-generation", "text": piece} for piece in split_text(final["text"]))
    events.append({"event_type": "stream-end", "finish_reason": "COMPLETE", "response": final})
    ended = [{"is_finished": event["event_type"] == "stream-end", **event} for event in events]
    return [(json.dumps(event, ensure_ascii=False) + "\n").encode() for event in ended]


# ── Embed and rerank ────────────────────────────────────────────────────────────────────────────────
def answer_embed(body: Json) -> Json:
    """Return embeddings, in the form that `embedding_types` requests."""
    texts = body.get("texts") or []
    vectors = [make_vector(body.get("output_dimension") or EMBEDDING_SIZE) for _ in texts]
    meta = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": sum(map(count_tokens, texts))}}
    has_types = bool(body.get("embedding_types"))
    kind = {"response_type": "embeddings_by_type" if has_types else "embeddings_floats"}
    embeddings = {"float": vectors} if has_types else vectors
    return {"id": make_id("", 36), **kind, "embeddings": embeddings, "texts": texts, "meta": meta}


def answer_rerank(body: Json) -> Json:
    """Return documents in order of relevance, which is random."""
    count = len(body["documents"])
    scores = sorted((abs(make_vector(1)[0]) for _ in range(count)), reverse=True)
    order = sorted(range(count), key=lambda _: make_vector(1)[0])
    results = [{"index": index, "relevance_score": score} for index, score in zip(order, scores, strict=True)]
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1.0}}
    return {"id": make_id("", 36), "results": results[: body.get("top_n") or count], "meta": meta}
