"""Reads JSON, JSON lines and server-sent events, tolerating truncated, invalid or unexpected data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

__all__ = ["as_dict", "as_dicts", "as_int", "as_str", "error_text", "join_texts", "read_documents", "to_json"]

ERROR_CHARS_MAX: Final = 500


def as_dict(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_dicts(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; other values are dropped."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def as_str(value: Any) -> str:
    """Return the value if it is text, else empty text."""
    return value if isinstance(value, str) else ""


def as_int(value: Any) -> int:
    """Return the value if it is an integer, else -1."""
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def join_texts(content: Any, *kinds: str) -> str:
    """Return the text of a message's content: a string, or a list of parts of which these types count."""
    if not isinstance(content, list):
        return as_str(content)
    texts = (each if isinstance(each, str) else _part_text(each, kinds) for each in content)
    return "\n".join(text for text in texts if text)


def _part_text(part: Any, kinds: tuple[str, ...]) -> str:
    fields = as_dict(part)
    return as_str(fields.get("text")) if fields.get("type", "text") in kinds else ""


def to_json(value: Any) -> str:
    """Return compact JSON text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def read_documents(chunks: Sequence[str]) -> tuple[list[dict[str, Any]], bool]:
    """Return a body's JSON objects (one, or one per event or element of a stream) and whether it is a stream."""
    text = "".join(chunks)
    start = text[:200].lstrip("\ufeff \t\r\n")
    if start.startswith(("data:", "event:", "id:", "retry:", ":")):
        return list(_iter_events(text)), True
    document = _parse(text)
    if document is None:
        lines = list(_iter_lines(text))
        return lines, bool(lines)
    if isinstance(document, list):  # Google's streams without alt=sse
        return as_dicts(document), True
    return ([document] if isinstance(document, dict) else []), False


def _iter_events(text: str) -> Iterator[dict[str, Any]]:
    lines = text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    data: list[str] = []
    for line in [*lines, ""]:  # a last event without its blank line is used if it parses
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            document = {"type": "[DONE]"} if data == ["[DONE]"] else _parse("\n".join(data))
            data = []
            if isinstance(document, dict):
                yield document


def _iter_lines(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of JSON lines up to the first invalid line, because the last one may be truncated."""
    for line in text.lstrip("\ufeff").split("\n"):
        document = _parse(line) if line.strip() else {}
        if not isinstance(document, dict):
            return
        if document:
            yield document


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def error_text(status: int, document: dict[str, Any], chunks: Sequence[str]) -> str:
    """Return `type: message` for an error body in any provider's format; empty if it is not an error."""
    error = document.get("error")
    if isinstance(error, dict):
        kinds = [as_str(error.get(name)) for name in ("type", "code", "status")]
        if as_str(document.get("type")) != "error":
            kinds.append(as_str(document.get("type")))
        said = as_str(error.get("message")) or as_str(error.get("Message"))
        parts = (next(filter(None, kinds), ""), said)
        return ": ".join(part for part in parts if part)[:ERROR_CHARS_MAX] or "error"
    if isinstance(error, str) and error:
        return error[:ERROR_CHARS_MAX]
    if document.get("object") == "error":
        return as_str(document.get("message"))[:ERROR_CHARS_MAX] or "error"
    if status < 400:
        return ""
    said = as_str(document.get("message")) or as_str(document.get("detail")) or "".join(chunks)[:ERROR_CHARS_MAX]
    said = said.strip()
    return f"HTTP {status}: {said}"[:ERROR_CHARS_MAX] if said else f"HTTP {status}"
