"""A call in a line or two: what was asked and what came back; pure functions.

Any JSON may stand in a recording, so every step takes what it does not know as it is.
"""

from __future__ import annotations

import json
from typing import Any, Final

from spanreplay.call import CallRecord, Kind
from spanreplay.cli.runs import parse_json

__all__ = ["answer_of", "asked_of", "facts_of"]

_TRANSPORT: Final = frozenset({Kind.LLM.value, Kind.EMBEDDING.value, Kind.HTTP.value})
EVENTS_MAX: Final = 100_000
ITEMS_SHOWN_MAX: Final = 20


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def _text_of(content: Any) -> str:
    """The text of a message's content: a string, or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else _compact(content)
    parts = []
    for part in content[:ITEMS_SHOWN_MAX]:
        if not isinstance(part, dict):
            parts.append(str(part))
        elif part.get("type") in ("tool_use", "function_call"):
            parts.append(_call_text(part.get("name"), part.get("input", part.get("arguments"))))
        elif part.get("type") == "tool_result":
            parts.append(_text_of(part.get("content")))
        elif "text" in part:
            parts.append(str(part["text"]))
        else:
            parts.append(f"[{part.get('type', 'part')}]")
    return " ".join(parts)


def _call_text(name: Any, arguments: Any) -> str:
    text = arguments if isinstance(arguments, str) else _compact(arguments)
    return f"{name}({text})"


def _message_text(message: Any) -> str:
    if not isinstance(message, dict):
        return _text_of(message)
    calls = message.get("tool_calls")
    parts = [_text_of(message.get("content", message.get("parts")))]
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function", {}) if isinstance(call, dict) else {}
        parts.append(_call_text(function.get("name"), function.get("arguments", "")))
    return " ".join(p for p in parts if p)


def _body_text(body: Any) -> str:
    if not isinstance(body, dict):
        return _text_of(body)
    for name in ("messages", "contents", "input"):
        value = body.get(name)
        if isinstance(value, list) and value and isinstance(value[-1], dict):
            last = value[-1]
            before = f" ({len(value) - 1} before)" if len(value) > 1 else ""
            return f"{last.get('role', last.get('type', 'input'))}{before}: {_message_text(last)}"
    for name in ("prompt", "input", "query"):
        if body.get(name):
            return _text_of(body[name])
    return _compact(body)


def _arguments_text(request: Any) -> str:
    if not isinstance(request, dict):
        return _compact(request)
    arguments = request.get("args")
    keywords = request.get("kwargs")
    parts = [_compact(a) for a in arguments] if isinstance(arguments, list) else []
    parts += [f"{k}={_compact(v)}" for k, v in keywords.items()] if isinstance(keywords, dict) else []
    return f"({', '.join(parts)})" if "args" in request or "kwargs" in request else _compact(request)


def asked_of(call: CallRecord) -> str:
    """What the call asked, as one long line."""
    request = parse_json(call.request)
    if not isinstance(request, dict) or call.kind not in _TRANSPORT:
        return _arguments_text(request) if request is not None else ""
    if call.kind == Kind.HTTP.value:
        return f"{request.get('method', '')} {request.get('url', '')}".strip()
    if "body" in request:
        return _body_text(request["body"])
    return str(request.get("body_text") or f"{request.get('method', '')} {request.get('url', '')}")


def chunk_text(response: Any) -> str:
    """The text of a transport response, chunks joined; binary chunks are left out."""
    chunks = response.get("chunks") if isinstance(response, dict) else None
    if not isinstance(chunks, list):
        return ""
    return "".join(c[1] for c in chunks if isinstance(c, list) and len(c) == 2 and isinstance(c[1], str))


def _event_piece(event: Any) -> str:
    """The text or tool arguments that one server-sent event adds."""
    if not isinstance(event, dict):
        return ""
    pieces = []
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if isinstance(delta, dict):
            pieces.append(str(delta.get("content") or ""))
            for call in delta.get("tool_calls") or []:
                function = call.get("function", {}) if isinstance(call, dict) else {}
                pieces.append(f" {function['name']}" if function.get("name") else "")
                pieces.append(str(function.get("arguments") or ""))
    delta = event.get("delta")
    if isinstance(delta, str):
        pieces.append(delta)
    elif isinstance(delta, dict):
        pieces.append(str(delta.get("text") or delta.get("partial_json") or ""))
    block = event.get("content_block")
    if isinstance(block, dict) and block.get("type") == "tool_use":
        pieces.append(f" {block.get('name')}")
    return "".join(pieces)


def _stream_text(text: str) -> str:
    pieces = []
    for line in text.splitlines()[:EVENTS_MAX]:
        if line.startswith("data:"):
            event = parse_json(line[5:].strip())
            pieces.append(_event_piece(event))
    return "".join(pieces).strip()


def _reply_text(body: Any) -> str:
    """The answer in a whole JSON response of a model."""
    if not isinstance(body, dict):
        return _text_of(body)
    choices = body.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        more = f" (and {len(choices) - 1} more)" if len(choices) > 1 else ""
        return (_message_text(choices[0].get("message")) or str(choices[0].get("text") or "")) + more
    if isinstance(body.get("content"), list):
        return _text_of(body["content"])
    if isinstance(body.get("output"), list):
        return " ".join(
            _call_text(o.get("name"), o.get("arguments")) if o.get("type") == "function_call" else _message_text(o)
            for o in body["output"][:ITEMS_SHOWN_MAX]
            if isinstance(o, dict)
        )
    if isinstance(body.get("data"), list) and body["data"] and "embedding" in str(body["data"][0])[:200]:
        return f"{len(body['data'])} embeddings"
    error = body.get("error")
    return _compact(error) if error else _compact(body)


def _error_text(error: Any) -> str:
    if isinstance(error, dict):
        kind = error.get("type") or error.get("class") or error.get("$exception") or "error"
        message = error.get("message") or error.get("args")
        return f"{kind}: {message if isinstance(message, str) else _compact(message)}"
    return _compact(error)


def answer_of(call: CallRecord) -> str:
    """What came back, as one long line; empty if nothing did."""
    response = parse_json(call.response)
    if not isinstance(response, dict):
        return "" if response is None else _compact(response)
    if "error" in response:
        return _error_text(response["error"])
    if "items" in response:
        items = response["items"]
        count = len(items) if isinstance(items, list) else 0
        return f"{count} items: {_compact(items[:ITEMS_SHOWN_MAX] if isinstance(items, list) else items)}"
    if "value" in response:
        return _compact(response["value"])
    text = chunk_text(response)
    status = response.get("status")
    prefix = f"{status} " if isinstance(status, int) and status >= 400 else ""
    if text.lstrip().startswith(("data:", "event:", ":")):
        return prefix + (_stream_text(text) or text)
    body = parse_json(text)
    shown = _reply_text(body) if call.kind in _TRANSPORT and call.kind != Kind.HTTP.value else text
    return prefix + (shown or (f"{status}" if not prefix else ""))


def facts_of(call: CallRecord) -> list[str]:
    """Model asked and answered, parameters and tokens, as short words."""
    meta = call.meta
    facts = []
    asked, answered = meta.get("model"), meta.get("response_model")
    if asked or answered:
        facts.append(f"{asked} → {answered}" if asked and answered and asked != answered else str(asked or answered))
    for name, label in (
        ("temperature", "T"),
        ("top_p", "top_p"),
        ("seed", "seed"),
        ("max_tokens", "max_tokens"),
    ):
        if meta.get(name) is not None:
            facts.append(f"{label}={meta[name]}")
    if meta.get("tokens_in") is not None or meta.get("tokens_out") is not None:
        facts.append(f"{meta.get('tokens_in', 0)}+{meta.get('tokens_out', 0)} tokens")
    if meta.get("finish_reason") not in (None, "", "stop", "end_turn"):
        facts.append(str(meta["finish_reason"]))
    return facts
