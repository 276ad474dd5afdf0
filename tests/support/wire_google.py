"""Google's wire format: generateContent as one object, streamGenerateContent as server-sent events."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from support.wire_text import (
    Json,
    Line,
    Turn,
    count_tokens,
    make_id,
    make_text,
    make_value,
    make_vector,
    read_turn,
    resolve_model,
    split_text,
)

PATH: Final = re.compile(r"/v1(?:beta1?)?/(?:.*/)?models/([^/:]+):(generateContent|streamGenerateContent|countTokens)")
STATUSES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


def _read_lines(contents: list[Json]) -> Iterator[Line]:
    for content in contents:
        parts = content.get("parts") or []
        results = [p["functionResponse"] for p in parts if "functionResponse" in p]
        for result in results:
            yield Line("tool", json.dumps(result.get("response"), ensure_ascii=False))
        if len(results) < len(parts):
            text = " ".join(p.get("text", "") for p in parts)
            yield Line(content.get("role", "user"), text, any("functionCall" in p for p in parts))


def _read_turn(body: Json) -> Turn:
    declared = [f for tool in body.get("tools") or [] for f in tool.get("functionDeclarations") or []]
    config = (body.get("toolConfig") or {}).get("functionCallingConfig") or {}
    names = [] if config.get("mode") == "NONE" else [f["name"] for f in declared]
    return read_turn(list(_read_lines(body.get("contents", []))), names, "")


def _lower_types(schema: Any) -> Any:
    """Convert Google's type names: its schemas say STRING instead of JSON schema's string."""
    if isinstance(schema, list):
        return [_lower_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    lowered = {k: _lower_types(v) for k, v in schema.items()}
    return {**lowered, "type": lowered["type"].lower()} if isinstance(lowered.get("type"), str) else lowered


def _make_parts(body: Json) -> list[Json]:
    turn = _read_turn(body)
    if turn.tool_orders:
        return [
            {"functionCall": {"id": make_id("", 8), "name": o.name, "args": json.loads(o.arguments)}}
            for o in turn.tool_orders
        ]
    config = body.get("generationConfig") or {}
    schema = config.get("responseJsonSchema") or _lower_types(config.get("responseSchema"))
    is_free = schema is None or "outside the schema" in turn.prompt
    return [{"text": make_text(turn) if is_free else json.dumps(make_value(schema))}]


def count_contents(body: Json) -> int:
    """Tokens of a request."""
    return count_tokens(json.dumps(body.get("contents", []), ensure_ascii=False))


def answer_generate(model: str, body: Json) -> Json:
    """A `GenerateContentResponse`."""
    parts = _make_parts(body)
    prompt, said = count_contents(body), count_tokens(json.dumps(parts, ensure_ascii=False))
    return {
        "candidates": [{"content": {"parts": parts, "role": "model"}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": prompt,
            "candidatesTokenCount": said,
            "totalTokenCount": prompt + said,
        },
        "modelVersion": resolve_model(model),
        "responseId": make_id("", 22),
    }


def stream_generate(model: str, body: Json) -> list[bytes]:
    """The server-sent events of a response, with Google's line ends."""
    final = answer_generate(model, body)
    candidate = final["candidates"][0]
    pieces: list[Json] = []
    for part in candidate["content"]["parts"]:
        pieces.extend([{"text": piece} for piece in split_text(part["text"])] if "text" in part else [part])
    events = []
    for at, piece in enumerate(pieces):
        chunk = {**final, "candidates": [{"content": {"parts": [piece], "role": "model"}, "index": 0}]}
        if at == len(pieces) - 1:
            chunk["candidates"][0]["finishReason"] = candidate["finishReason"]
        else:
            chunk["usageMetadata"] = {"promptTokenCount": final["usageMetadata"]["promptTokenCount"]}
        events.append(f"data: {json.dumps(chunk, ensure_ascii=False)}\r\n\r\n".encode())
    return events


def error_body(status: int, message: str) -> Json:
    """Return an error in the format of Google's servers."""
    return {"error": {"code": status, "message": message, "status": STATUSES.get(status, "UNKNOWN")}}


def answer_embeds(method: str, body: Json) -> Json:
    """Embeddings of :embedContent, :batchEmbedContents, or Vertex AI's :predict."""
    if method == "predict":
        rows = [
            {"statistics": {"token_count": 3, "truncated": False}, "values": make_vector(8)} for _ in body["instances"]
        ]
        return {"predictions": [{"embeddings": row} for row in rows]}
    if method == "batchEmbedContents":
        return {"embeddings": [{"values": make_vector(8)} for _ in body["requests"]]}
    return {"embedding": {"values": make_vector(8)}}
