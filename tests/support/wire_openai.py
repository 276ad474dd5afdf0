"""OpenAI's wire format: chat completions, responses, embeddings; one request body in, one reply out."""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import Iterator
from typing import Any, Final

from support.wire_text import (
    Json,
    Line,
    ToolOrder,
    Turn,
    count_tokens,
    flatten_content,
    make_id,
    make_text,
    make_value,
    make_vector,
    read_turn,
    resolve_model,
    split_text,
)

EMBEDDING_SIZE: Final = 8
THOUGHT: Final = "Let me think about it."


def sse(payload: Json | str, event: str = "") -> bytes:
    """One server-sent event."""
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {text}\n\n".encode()


# ── Chat completions ────────────────────────────────────────────────────────────────────────────────
def read_chat_turn(body: Json) -> Turn:
    """Return the turn that a conversation in OpenAI's form requests now."""
    lines = [
        Line(m.get("role", ""), flatten_content(m.get("content")), bool(m.get("tool_calls")))
        for m in body.get("messages", [])
    ]
    tools = [t["function"]["name"] for t in body.get("tools") or [] if t.get("type") == "function"]
    return read_turn(lines, [] if body.get("tool_choice") == "none" else tools, "call_")


def _answer_text(turn: Turn, schema: Json | None) -> str:
    if schema is None or "outside the schema" in turn.prompt:
        return make_text(turn)
    return json.dumps(make_value(schema))


def _chat_schema(body: Json) -> Json | None:
    fmt = body.get("response_format") or {}
    if fmt.get("type") == "json_schema":
        schema: Json = fmt["json_schema"]["schema"]
        return schema
    if fmt.get("type") == "json_object":
        return {"type": "object", "properties": {"answer": {"type": "string"}, "n": {"type": "integer"}}}
    return None


def _logprob(token: str, top: int) -> Json:
    def entry(text: str, logprob: float) -> Json:
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    value = -1.0 / (1 + len(token))
    alternatives = [entry(token if i == 0 else f"{token}~{i}", value - i) for i in range(top)]
    return {**entry(token, value), "top_logprobs": alternatives}


def _logprobs(body: Json, text: str) -> Json | None:
    if not body.get("logprobs"):
        return None
    tokens = [piece for piece in split_text(text) if piece]
    return {"content": [_logprob(t, body.get("top_logprobs") or 0) for t in tokens], "refusal": None}


def _tool_call(order: ToolOrder) -> Json:
    function = {"name": order.name, "arguments": order.arguments}
    return {"id": order.call_id, "type": "function", "function": function}


def _chat_usage(body: Json, texts: list[str]) -> Json:
    asked = count_tokens(json.dumps(body.get("messages", []), ensure_ascii=False))
    said = sum(count_tokens(text) for text in texts)
    return {
        "prompt_tokens": asked,
        "completion_tokens": said,
        "total_tokens": asked + said,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def _is_thinking(body: Json) -> bool:
    """Whether an inference engine's template is asked for visible reasoning."""
    return bool((body.get("chat_template_kwargs") or {}).get("enable_thinking"))


def answer_chat(body: Json, fingerprint: str) -> Json:
    """A `chat.completion` object."""
    choices = []
    texts = []
    for index in range(body.get("n") or 1):
        turn = read_chat_turn(body)
        message: Json = {"role": "assistant", "content": None, "refusal": None, "annotations": []}
        if turn.tool_orders:
            message["tool_calls"] = [_tool_call(order) for order in turn.tool_orders]
            texts.append("".join(order.arguments for order in turn.tool_orders))
        else:
            message["content"] = _answer_text(turn, _chat_schema(body))
            texts.append(message["content"])
        if _is_thinking(body):
            message["reasoning_content"] = THOUGHT
        choices.append(
            {
                "index": index,
                "message": message,
                "logprobs": _logprobs(body, message["content"] or ""),
                "finish_reason": "tool_calls" if turn.tool_orders else "stop",
            }
        )
    return {
        "id": make_id("chatcmpl-", 29),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": resolve_model(body.get("model", "")),
        "choices": choices,
        "usage": _chat_usage(body, texts),
        "service_tier": "default",
        "system_fingerprint": fingerprint,
    }


def _text_deltas(text: str) -> Iterator[tuple[Json, str]]:
    yield {"role": "assistant", "content": "", "refusal": None}, ""
    for piece in split_text(text):
        yield {"content": piece}, piece


def _tool_deltas(turn: Turn) -> Iterator[tuple[Json, str]]:
    for at, order in enumerate(turn.tool_orders):
        call = _tool_call(order)
        call["function"] = {"name": order.name, "arguments": ""}
        delta: Json = {"tool_calls": [{"index": at, **call}]}
        yield ({"role": "assistant", "content": None, **delta} if at == 0 else delta), ""
        for piece in split_text(order.arguments, 3):
            yield {"tool_calls": [{"index": at, "function": {"arguments": piece}}]}, ""


def stream_chat(body: Json, fingerprint: str) -> list[bytes]:
    """The server-sent events of a chat completion: 13 chunks for a text, then `[DONE]`."""
    head = {
        "id": make_id("chatcmpl-", 29),
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": resolve_model(body.get("model", "")),
        "service_tier": "default",
        "system_fingerprint": fingerprint,
    }
    with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    tail: Json = {"usage": None} if with_usage else {}
    events = []
    texts = []
    for index in range(body.get("n") or 1):
        turn = read_chat_turn(body)
        text = "" if turn.tool_orders else _answer_text(turn, _chat_schema(body))
        texts.append(text or "".join(order.arguments for order in turn.tool_orders))
        if _is_thinking(body):
            thinking = {"index": index, "delta": {"reasoning_content": THOUGHT}, "finish_reason": None}
            events.append(sse({**head, "choices": [thinking], **tail}))
        for delta, piece in _tool_deltas(turn) if turn.tool_orders else _text_deltas(text):
            logprobs = _logprobs(body, piece) if piece else None
            choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
            events.append(sse({**head, "choices": [choice], **tail}))
        reason = "tool_calls" if turn.tool_orders else "stop"
        last = {"index": index, "delta": {}, "logprobs": None, "finish_reason": reason}
        events.append(sse({**head, "choices": [last], **tail}))
    if with_usage:
        events.append(sse({**head, "choices": [], "usage": _chat_usage(body, texts)}))
    return [*events, sse("[DONE]")]


# ── Responses ───────────────────────────────────────────────────────────────────────────────────────
def _read_responses_turn(body: Json) -> Turn:
    asked: Any = body.get("input", "")
    items = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    lines: list[Line] = []
    for item in items:
        if item.get("type") == "function_call_output":
            lines.append(Line("tool", flatten_content(item.get("output"))))
        elif item.get("type") == "function_call":
            if not (lines and lines[-1].is_tool_request):  # parallel calls belong to one turn
                lines.append(Line("assistant", "", is_tool_request=True))
        else:
            lines.append(Line(item.get("role", ""), flatten_content(item.get("content"))))
    tools = [t["name"] for t in body.get("tools") or [] if t.get("type") == "function"]
    return read_turn(lines, [] if body.get("tool_choice") == "none" else tools, "call_")


def _responses_output(body: Json) -> list[Json]:
    turn = _read_responses_turn(body)
    if turn.tool_orders:
        return [
            {
                "id": make_id("fc_"),
                "type": "function_call",
                "status": "completed",
                "call_id": order.call_id,
                "name": order.name,
                "arguments": order.arguments,
            }
            for order in turn.tool_orders
        ]
    fmt = (body.get("text") or {}).get("format") or {}
    text = _answer_text(turn, fmt.get("schema") if fmt.get("type") == "json_schema" else None)
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    message = {"id": make_id("msg_"), "type": "message", "status": "completed", "role": "assistant"}
    return [{**message, "content": [part]}]


def answer_responses(body: Json) -> Json:
    """A `response` object."""
    output = _responses_output(body)
    asked = count_tokens(json.dumps(body.get("input", ""), ensure_ascii=False))
    said = count_tokens(json.dumps(output, ensure_ascii=False))
    return {
        "id": make_id("resp_", 40),
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "model": resolve_model(body.get("model", "")),
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": body.get("previous_response_id"),
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": body.get("temperature", 1.0),
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p", 1.0),
        "truncation": "disabled",
        "usage": {
            "input_tokens": asked,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": said,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": asked + said,
        },
        "user": None,
        "metadata": body.get("metadata") or {},
    }


def _item_events(item: Json, at: int) -> Iterator[Json]:
    where = {"item_id": item["id"], "output_index": at}
    if item["type"] == "function_call":
        started = {**item, "arguments": "", "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": at, "item": started}
        for piece in split_text(item["arguments"], 3):
            yield {"type": "response.function_call_arguments.delta", **where, "delta": piece}
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **where, **done}
    else:
        part = item["content"][0]
        where["content_index"] = 0
        started = {**item, "content": [], "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": at, "item": started}
        yield {"type": "response.content_part.added", **where, "part": {**part, "text": ""}}
        for piece in split_text(part["text"]):
            yield {"type": "response.output_text.delta", **where, "delta": piece, "logprobs": []}
        yield {"type": "response.output_text.done", **where, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **where, "part": part}
    yield {"type": "response.output_item.done", "output_index": at, "item": item}


def stream_responses(body: Json) -> list[bytes]:
    """The server-sent events of a response, numbered in order."""
    final = answer_responses(body)
    started = {**final, "status": "in_progress", "output": [], "usage": None}
    payloads: list[Json] = [
        {"type": "response.created", "response": started},
        {"type": "response.in_progress", "response": started},
    ]
    for at, item in enumerate(final["output"]):
        payloads.extend(_item_events(item, at))
    payloads.append({"type": "response.completed", "response": final})
    return [sse({"type": p["type"], "sequence_number": number, **p}, p["type"]) for number, p in enumerate(payloads)]


# ── Embeddings ──────────────────────────────────────────────────────────────────────────────────────
def answer_embeddings(body: Json) -> Json:
    """A list of embeddings, as floats or as base64 of little-endian float32."""
    asked: Any = body.get("input", "")
    inputs = asked if isinstance(asked, list) and not (asked and isinstance(asked[0], int)) else [asked]
    rows = []
    for index in range(len(inputs)):
        vector = make_vector(body.get("dimensions") or EMBEDDING_SIZE)
        packed = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        value = packed if body.get("encoding_format") == "base64" else vector
        rows.append({"object": "embedding", "index": index, "embedding": value})
    tokens = sum(count_tokens(str(text)) for text in inputs)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    head = {"id": make_id("embd-"), "object": "list"}  # OpenAI sends no id; Mistral's SDK requires one
    return {**head, "data": rows, "model": resolve_model(body.get("model", "")), "usage": usage}


def answer_compact(body: Json) -> Json:
    """Return the user's messages, and one item that only the model can read."""
    said = [item for item in body["input"] if item.get("role") == "user"]
    kept = [
        {"type": "message", "role": "user", "id": make_id("msg_"), "status": "completed", "content": [
            {"type": "input_text", "text": flatten_content(item["content"])}
        ]}
        for item in said
    ]  # fmt: skip
    return {
        "id": make_id("resp_"),
        "object": "response.compaction",
        "created_at": 1_790_000_000,
        "output": [*kept, {"type": "compaction", "id": make_id("cmp_"), "encrypted_content": make_id("gAAAA", 40)}],
        "usage": {
            "input_tokens": 90,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 10,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 100,
        },
    }


def answer_input_tokens(body: Json) -> Json:
    """Return the number of tokens of a request."""
    return {"object": "response.input_tokens", "input_tokens": count_tokens(json.dumps(body["input"]))}
