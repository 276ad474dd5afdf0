"""Ollama's own wire format: chat, generate and embed; streams are JSON lines."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from support.wire_openai import read_chat_turn
from support.wire_text import (
    Json,
    Line,
    count_tokens,
    make_id,
    make_text,
    make_vector,
    read_turn,
    resolve_model,
    split_text,
)

EMBEDDING_SIZE = 8


def _head(body: Json) -> Json:
    return {"model": resolve_model(body["model"]), "created_at": datetime.now(timezone.utc).isoformat()}


def _tail(asked: Any, said: Any) -> Json:
    return {
        "done": True,
        "done_reason": "stop",
        "total_duration": 5_000_000,
        "load_duration": 1_000_000,
        "prompt_eval_count": count_tokens(json.dumps(asked, ensure_ascii=False)),
        "prompt_eval_duration": 1_000_000,
        "eval_count": count_tokens(json.dumps(said, ensure_ascii=False)),
        "eval_duration": 3_000_000,
    }


def answer_chat(body: Json) -> Json:
    """An answer of /api/chat."""
    turn = read_chat_turn(body)
    message: Json = {"role": "assistant", "content": "" if turn.tool_orders else make_text(turn)}
    if turn.tool_orders:
        message["tool_calls"] = [
            {"id": make_id("call_", 8), "function": {"name": o.name, "arguments": json.loads(o.arguments)}}
            for o in turn.tool_orders
        ]
    return {**_head(body), "message": message, **_tail(body["messages"], message)}


def stream_chat(body: Json) -> list[bytes]:
    """The lines of /api/chat; the last one has no text."""
    final = answer_chat(body)
    message = final["message"]
    pieces: list[Json] = [{"role": "assistant", "content": piece} for piece in split_text(message["content"])]
    if "tool_calls" in message:
        pieces = [{"role": "assistant", "content": "", "tool_calls": [call]} for call in message["tool_calls"]]
    lines = [{**_head(body), "message": piece, "done": False} for piece in pieces]
    return _lines([*lines, {**final, "message": {"role": "assistant", "content": ""}}])


def answer_generate(body: Json) -> Json:
    """An answer of /api/generate."""
    text = make_text(read_turn([Line("user", body.get("prompt", ""))], [], ""))
    return {**_head(body), "response": text, "context": [1, 2, 3], **_tail(body.get("prompt"), text)}


def stream_generate(body: Json) -> list[bytes]:
    """The lines of /api/generate."""
    final = answer_generate(body)
    lines = [{**_head(body), "response": piece, "done": False} for piece in split_text(final["response"])]
    return _lines([*lines, {**final, "response": ""}])


def answer_embed(body: Json) -> Json:
    """Embeddings of /api/embed."""
    given = body.get("input", "")
    texts = given if isinstance(given, list) else [given]
    vectors = [make_vector(body.get("dimensions") or EMBEDDING_SIZE) for _ in texts]
    counted = sum(map(count_tokens, texts))
    return {"model": resolve_model(body["model"]), "embeddings": vectors, "prompt_eval_count": counted}


def _lines(documents: list[Json]) -> list[bytes]:
    return [(json.dumps(document, ensure_ascii=False) + "\n").encode() for document in documents]
