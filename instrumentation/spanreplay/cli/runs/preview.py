"""Show a call's request and answer in a line or two; pure functions.

A recording may contain any JSON, so every function falls back to showing unknown values as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from spanreplay.cli.runs.runs import parse_json
from spanreplay.dialects import Dialect, Message, find_dialect
from spanreplay.model.call import CallRecord, Kind
from spanreplay.runtime.wire.http_reply import stored_texts

__all__ = ["answer_of", "asked_of", "chunk_text", "conversation_of", "facts_of"]

_TRANSPORT: Final = frozenset({Kind.LLM.value, Kind.EMBEDDING.value, Kind.HTTP.value})
ITEMS_SHOWN_MAX: Final = 20
_QUIET_ENDS: Final = (None, "", "stop", "end_turn", "completed", "STOP", "COMPLETE", "FINISH")


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def _find(request: Mapping[str, Any]) -> Dialect | None:
    return find_dialect(str(request.get("method", "")), str(request.get("url", "")), request.get("body"))


def _message_text(message: Message) -> str:
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    images = [f"[{len(message.image_urls)} images]"] if message.image_urls else []
    return " ".join(part for part in (message.text, *calls, *images) if part)


def _body_text(dialect: Dialect | None, request: Mapping[str, Any]) -> str:
    """The last message or the input of a model's request; else the body as it is."""
    body = request.get("body")
    if dialect is not None and isinstance(body, dict):
        conversation = dialect.conversation(body)
        messages = dialect.read_message(conversation[-1]) if conversation else []
        if messages and _message_text(messages[-1]):
            before = f" ({len(conversation) - 1} before)" if len(conversation) > 1 else ""
            return f"{messages[-1].role}{before}: {_message_text(messages[-1])}"
        for name in ("input", "prompt"):
            if body.get(name):
                return body[name] if isinstance(body[name], str) else _compact(body[name])
    if body is not None:
        return _compact(body)
    return str(request.get("body_text") or "") or _target(request)


def _target(request: Mapping[str, Any]) -> str:
    return f"{request.get('method', '')} {request.get('url', '')}".strip()


def _arguments_text(request: Any) -> str:
    if not isinstance(request, dict) or not ("args" in request or "kwargs" in request):
        return _compact(request)
    arguments, keywords = request.get("args"), request.get("kwargs")
    parts = [_compact(a) for a in arguments] if isinstance(arguments, list) else []
    parts += [f"{k}={_compact(v)}" for k, v in keywords.items()] if isinstance(keywords, dict) else []
    return f"({', '.join(parts)})"


def asked_of(call: CallRecord) -> str:
    """The request of a call, as one long line."""
    request = parse_json(call.request)
    if request is None:
        return ""
    if not isinstance(request, dict) or (call.kind not in _TRANSPORT and "url" not in request):
        return _arguments_text(request)
    if call.kind == Kind.HTTP.value:
        return _target(request)
    return _body_text(_find(request), request)


def conversation_of(call: CallRecord) -> list[tuple[str, str]]:
    """(role, text) of each message sent to a model; empty for other calls, or if no dialect matches."""
    request = parse_json(call.request)
    if not isinstance(request, dict) or call.kind != Kind.LLM.value:
        return []
    dialect, body = _find(request), request.get("body")
    if dialect is None or not isinstance(body, dict):
        return []
    return [
        (message.role, _message_text(message))
        for entry in dialect.conversation(body)
        for message in dialect.read_message(entry)
    ]


def _chunks(response: Any) -> list[str]:
    chunks = response.get("chunks") if isinstance(response, dict) else None
    try:
        return stored_texts(chunks) if isinstance(chunks, list) else []
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


def chunk_text(response: Any) -> str:
    """The text of a transport response, chunks joined; binary chunks are left out."""
    return "".join(_chunks(response))


def _error_text(error: Any) -> str:
    if not isinstance(error, dict):
        return _compact(error)
    name = error.get("type") or error.get("class") or "error"
    message = error.get("message", error.get("args"))
    return f"{name}: {message if isinstance(message, str) else _compact(message)}"


def _model_answer(request: Any, response: Mapping[str, Any]) -> str:
    """The model's answer, decoded by its dialect; empty if it can't be decoded."""
    dialect = _find(request) if isinstance(request, dict) else None
    status = response.get("status")
    if dialect is None or not isinstance(status, int):
        return ""
    meaning = dialect.read_response(status, _chunks(response))
    if meaning.error:
        return meaning.error
    calls = [f"{call.name}({call.arguments})" for call in meaning.tool_calls]
    more = [f"(and {len(meaning.messages) - 1} more)"] if len(meaning.messages) > 1 else []
    return " ".join(part for part in (meaning.text, *calls, *more) if part)


def _transport_answer(call: CallRecord, response: Mapping[str, Any]) -> str:
    status = response.get("status")
    prefix = f"{status} " if isinstance(status, int) and status >= 400 else ""
    meaning = "" if call.kind == Kind.HTTP.value else _model_answer(parse_json(call.request), response)
    shown = meaning or chunk_text(response)
    return prefix + shown if shown or prefix else f"{status or ''}"


def answer_of(call: CallRecord) -> str:
    """The answer to a call, as one long line; empty if there was none."""
    response = parse_json(call.response)
    if response is None:
        return ""
    if not isinstance(response, dict):
        return _compact(response)
    if "error" in response:
        return _error_text(response["error"])
    if isinstance(response.get("items"), list):
        items = response["items"]
        return f"{len(items)} items: {_compact(items[:ITEMS_SHOWN_MAX])}"
    if "value" in response:
        return _compact(response["value"])
    return _transport_answer(call, response)


def facts_of(call: CallRecord) -> list[str]:
    """Requested and answering model, parameters, tokens and errors, as short words."""
    meta = call.meta
    facts = []
    asked, answered = meta.get("model"), meta.get("response_model")
    if asked or answered:
        is_resolved = asked and answered and asked != answered
        facts.append(f"{asked} → {answered}" if is_resolved else str(asked or answered))
    for name, label in (("temperature", "T"), ("top_p", "top_p"), ("seed", "seed"), ("max_tokens", "max_tokens")):
        if meta.get(name) is not None:
            facts.append(f"{label}={meta[name]}")
    if meta.get("reused_from"):
        facts.append(f"answer of run {str(meta['reused_from'])[:13]}")
    if meta.get("tokens_in") is not None or meta.get("tokens_out") is not None:
        facts.append(f"{meta.get('tokens_in', 0)}+{meta.get('tokens_out', 0)} tokens")
    if meta.get("finish_reason") not in _QUIET_ENDS:
        facts.append(str(meta["finish_reason"]))
    if meta.get("error"):
        facts.append(str(meta["error"]))
    return facts
