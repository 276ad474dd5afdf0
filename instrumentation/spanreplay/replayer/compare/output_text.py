"""The text that a call returned to the agent, as it reads there; pure."""

from __future__ import annotations

import json
from typing import Any, Final

CHARACTERS_MAX: Final = 200_000


def output_text(request: str, response: str) -> str:
    """Return all texts of a response, one per line; joins a model's stream. `request` names the protocol, if known."""
    try:
        value = json.loads(response)
    except ValueError:
        return response[:CHARACTERS_MAX]
    if isinstance(value, dict) and isinstance(value.get("chunks"), list):
        return _exchange_text(request, value)
    return "\n".join(_leaves(value))[:CHARACTERS_MAX]


def _exchange_text(request: str, value: dict[str, Any]) -> str:
    chunks = [chunk[1] for chunk in value["chunks"] if isinstance(chunk, list) and len(chunk) == 2]
    texts = [chunk for chunk in chunks if isinstance(chunk, str)]
    meaning = _read_model(request, int(value.get("status", 0)), texts)
    if meaning:
        return meaning[:CHARACTERS_MAX]
    body = "".join(texts)
    try:
        return "\n".join(_leaves(json.loads(body)))[:CHARACTERS_MAX]
    except ValueError:
        return body[:CHARACTERS_MAX]


def _read_model(request: str, status: int, texts: list[str]) -> str:
    from spanreplay.dialects import find_dialect

    try:
        asked = json.loads(request) if request else {}
        dialect = find_dialect(str(asked.get("method", "")), str(asked.get("url", "")))
    except (ValueError, AttributeError):
        return ""
    if dialect is None:
        return ""
    found = dialect.read_response(status, texts, any(t.startswith(("data:", "event:")) for t in texts))
    return "\n".join([found.text, *(f"{c.name} {c.arguments}" for c in found.tool_calls)]).strip()


def _leaves(value: Any) -> list[str]:
    found: list[str] = []
    stack = [value]
    while stack and len(found) < 10_000:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, str):
            found.append(item)
        elif item is not None:
            found.append(json.dumps(item))
    return found
