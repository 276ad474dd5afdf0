"""Bedrock's wire format: Converse and InvokeModel, whole or as AWS event messages."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

from support.wire_anthropic import answer_messages, stream_messages
from support.wire_text import (
    Json,
    Line,
    count_tokens,
    make_id,
    make_text,
    make_vector,
    read_turn,
    split_text,
)

EVENT_STREAM = "application/vnd.amazon.eventstream"


def aws_event(name: str, payload: bytes, kind: str = "event") -> bytes:
    """One message of application/vnd.amazon.eventstream."""
    headers = b""
    for key, value in ((f":{kind}-type", name), (":content-type", "application/json"), (":message-type", kind)):
        headers += bytes([len(key)]) + key.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack(">I", zlib.crc32(message))


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


# ── Converse ────────────────────────────────────────────────────────────────────────────────────────
def _answer_blocks(body: Json) -> list[Json]:
    lines: list[Line] = []
    for message in body.get("messages", []):
        blocks = message["content"]
        text = " ".join(block.get("text", "") for block in blocks)
        results = [block["toolResult"] for block in blocks if "toolResult" in block]
        lines.extend(Line("tool", json.dumps(result["content"])) for result in results)
        if len(results) < len(blocks):
            lines.append(Line(message["role"], text, any("toolUse" in block for block in blocks)))
    tools = (body.get("toolConfig") or {}).get("tools") or []
    turn = read_turn(lines, [tool["toolSpec"]["name"] for tool in tools], "tooluse_")
    return [
        {"toolUse": {"toolUseId": o.call_id, "name": o.name, "input": json.loads(o.arguments)}}
        for o in turn.tool_orders
    ] or [{"text": make_text(turn)}]


def answer_converse(body: Json) -> Json:
    """Return an answer of Converse; a Nova model gives the same to InvokeModel."""
    blocks = _answer_blocks(body)
    asked = count_tokens(json.dumps(body["messages"], ensure_ascii=False))
    said = count_tokens(json.dumps(blocks, ensure_ascii=False))
    return {
        "output": {"message": {"role": "assistant", "content": blocks}},
        "stopReason": "tool_use" if "toolUse" in blocks[0] else "end_turn",
        "usage": {"inputTokens": asked, "outputTokens": said, "totalTokens": asked + said},
        "metrics": {"latencyMs": 7},
    }


def _converse_events(body: Json) -> list[tuple[str, Json]]:
    final = answer_converse(body)
    events: list[tuple[str, Json]] = [("messageStart", {"role": "assistant"})]
    for index, block in enumerate(final["output"]["message"]["content"]):
        at = {"contentBlockIndex": index}
        if "toolUse" in block:
            call = block["toolUse"]
            start = {"toolUse": {"toolUseId": call["toolUseId"], "name": call["name"]}}
            events.append(("contentBlockStart", {**at, "start": start}))
            pieces = split_text(json.dumps(call["input"], ensure_ascii=False), 3)
            deltas: list[Json] = [{"toolUse": {"input": piece}} for piece in pieces]
        else:
            deltas = [{"text": piece} for piece in split_text(block["text"])]
        events.extend(("contentBlockDelta", {**at, "delta": delta}) for delta in deltas)
        events.append(("contentBlockStop", at))
    events.append(("messageStop", {"stopReason": final["stopReason"]}))
    return [*events, ("metadata", {"usage": final["usage"], "metrics": final["metrics"]})]


def stream_converse(body: Json) -> list[bytes]:
    """Return the event messages of ConverseStream; each payload is padded, as in Bedrock."""
    events = [aws_event(name, _json({**event, "p": make_id("", 4)})) for name, event in _converse_events(body)]
    if "throttled mid-stream" in json.dumps(body["messages"][-1]):
        return [
            *events[: len(events) // 2],
            aws_event("throttlingException", _json({"message": "slow down"}), "exception"),
        ]
    return events


# ── InvokeModel ─────────────────────────────────────────────────────────────────────────────────────
def _prompt_text(body: Json) -> str:
    return make_text(read_turn([Line("user", body.get("prompt") or body.get("inputText") or "")], [], ""))


def answer_invoke(model: str, body: Json) -> Json:
    """Return a model's answer to InvokeModel, in its vendor's form."""
    if "anthropic_version" in body:
        return answer_messages({**body, "model": model})
    if "singleEmbeddingParams" in body:
        return {"embeddings": [{"embeddingType": "TEXT", "embedding": make_vector(8)}]}
    if "embed" in model or (model.startswith("arn:") and "textGenerationConfig" not in body):
        return {"embedding": make_vector(8), "inputTextTokenCount": count_tokens(body["inputText"])}
    if "messages" in body:
        return answer_converse(body)
    text, asked = _prompt_text(body), count_tokens(body.get("prompt") or body.get("inputText") or "")
    said = count_tokens(text)
    if model.startswith("cohere."):
        return {
            "id": make_id(""),
            "generations": [{"finish_reason": "COMPLETE", "text": text}],
            "prompt": body["prompt"],
        }
    if "inputText" in body:
        result = {"tokenCount": said, "outputText": text, "completionReason": "FINISH"}
        return {"inputTextTokenCount": asked, "results": [result]}
    counts = {"prompt_token_count": asked, "generation_token_count": said}
    return {"generation": text, **counts, "stop_reason": "stop"}


def _invoke_chunks(model: str, body: Json) -> list[Json]:
    if "anthropic_version" in body:
        events = stream_messages({**body, "model": model})
        return [json.loads(event.decode().partition("data: ")[2]) for event in events]
    if "messages" in body:
        return [{name: event} for name, event in _converse_events(body)]
    final = answer_invoke(model, body)
    if "inputText" in body:
        *pieces, last = split_text(final["results"][0]["outputText"])
        head: Json = {"index": 0, "totalOutputTextTokenCount": None, "completionReason": None}
        count = {"inputTextTokenCount": final["inputTextTokenCount"]}
        end = {"totalOutputTextTokenCount": final["results"][0]["tokenCount"], "completionReason": "FINISH"}
        return [*({**head, **count, "outputText": p} for p in pieces), {**head, **count, "outputText": last, **end}]
    *pieces, last = split_text(final["generation"])
    return [
        *(
            {"generation": p, "prompt_token_count": None, "generation_token_count": 1, "stop_reason": None}
            for p in pieces
        ),
        {**final, "generation": last},
    ]


def stream_invoke(model: str, body: Json) -> list[bytes]:
    """Return the event messages of InvokeModelWithResponseStream; metrics are in the last chunk."""
    *chunks, last = _invoke_chunks(model, body)
    metrics = {"inputTokenCount": 11, "outputTokenCount": 12, "invocationLatency": 7, "firstByteLatency": 3}
    framed = []
    for chunk in (*chunks, {**last, "amazon-bedrock-invocationMetrics": metrics}):
        payload = {"bytes": base64.b64encode(_json(chunk)).decode(), "p": make_id("", 4)}
        framed.append(aws_event("chunk", _json(payload)))
    return framed
