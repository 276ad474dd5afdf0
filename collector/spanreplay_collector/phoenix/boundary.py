"""Derive a boundary span's OpenInference attributes from its payload; pure functions.

The agent's process writes the payload once and only adds the kind of span; the attributes that Phoenix shows
(messages, tool calls, token counts, input, output) are derived here. A span that an OpenInference instrumentor
already shows has kind CHAIN and gets no tokens, so that they don't count twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from spanreplay.dialects import find_dialect, read_realtime
from spanreplay.model import attributes as names
from spanreplay.recording.otlp.otlp import decode_attributes, encode_value
from spanreplay.runtime.wire.http_reply import body_texts, decode_reply

SPAN_KIND: Final = "openinference.span.kind"
_JSON: Final = "application/json"
_MODEL_KINDS: Final = ("retriever", "compute")
"""Kinds that include some model calls, such as a reranker's or a tokenizer's."""


def derive_attributes(pairs: Any) -> dict[str, AnyValue]:
    """OpenInference attributes that the span does not have itself; empty if it is not a boundary span."""
    attributes = decode_attributes(pairs)
    if names.REQUEST not in attributes:
        return {}
    derived: dict[str, Any] = {}
    try:
        derived = _derive(attributes)
    except (ValueError, KeyError, TypeError, AttributeError):
        # A payload in another format, from another writer: it is shown unchanged
        derived = {}
    return {k: encode_value(v) for k, v in derived.items() if k not in attributes and v is not None}


def _derive(attributes: Mapping[str, Any]) -> dict[str, Any]:
    request = json.loads(attributes[names.REQUEST])
    response = str(attributes.get(names.RESPONSE, ""))
    if "arguments" in request:
        return _leaf(request, response)
    if attributes.get(SPAN_KIND) in ("LLM", "EMBEDDING") or attributes.get(names.KIND) in _MODEL_KINDS:
        return _model(request, response)
    return _plain(request.get("body", request.get("body_text", request)), _body_of(response))


def _leaf(request: Mapping[str, Any], response: str) -> dict[str, Any]:
    answered = json.loads(response) if response else {}
    shown = answered.get("value", answered.get("items", answered.get("error", answered)))
    return _plain(request["arguments"], shown)


def _plain(asked: Any, answered: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in (("input", asked), ("output", answered)):
        if value is None or value == "":
            continue
        is_text = isinstance(value, str)
        found[f"{name}.value"] = value if is_text else json.dumps(value, ensure_ascii=False)
        found[f"{name}.mime_type"] = "text/plain" if is_text else _JSON
    return found


def _model(request: Mapping[str, Any], response: str) -> dict[str, Any]:
    held = json.loads(response) if response else {}
    if "messages" in held:
        events = ((side == names.SENT, message) for side, _, message in held["messages"])
        exchange = read_realtime(str(request.get("url", "")), events)
        return dict(exchange.dialect.openinference(*exchange[1:])) if exchange is not None else {}
    body = request.get("body")
    dialect = find_dialect(str(request.get("method", "POST")), str(request.get("url", "")), body)
    if dialect is None or not isinstance(body, dict):
        return _plain(body, _body_of(response))
    asked = dialect.read_request(body)
    reply = decode_reply(response) if response else None
    answered = None
    if reply is not None and reply.status:
        answered = dialect.read_response(reply.status, body_texts(reply), asked.is_stream)
    return dict(dialect.openinference(body, asked, answered))


def _body_of(response: str) -> str:
    if not response:
        return ""
    reply = decode_reply(response)
    if reply.error is not None and not reply.status:
        return str(reply.error.get("message", ""))
    return "".join(body_texts(reply)) or b"".join(chunk for _, chunk in reply.chunks).decode("utf-8", "replace")
