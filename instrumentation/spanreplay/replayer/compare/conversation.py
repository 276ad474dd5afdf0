"""Compares two requests of one conversation, message by message; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Final

from spanreplay.replayer.divergence import Change, common_ends

_LISTS: Final = ("messages", "input", "contents")
_SYSTEM: Final = ("system", "instructions", "systemInstruction", "system_instruction")
SYSTEM_ROLES: Final = frozenset({"system", "developer"})
_RESULT_TYPES: Final = frozenset({"tool_result", "function_call_output", "functionResponse"})
CHANGES_MAX: Final = 50
INJECTED, DROPPED, CHANGED = "injected", "dropped", "changed"


@dataclass(frozen=True)
class Comparison:
    """The differing messages; `turn` is the user's turn of the first one, counted from 1; 0 if none differs.

    `texts` are the changed and injected messages as JSON, to recognise them in later calls.
    """

    changes: tuple[Change, ...] = ()
    turn: int = 0
    texts: tuple[str, ...] = ()


def read_messages(request: str) -> list[Any]:
    """Return the messages of a model's recorded request, the system prompt first; [] for any other request."""
    return messages_of(read_body(request))


def read_body(request: str) -> Any:
    """Return the body of a recorded HTTP request; None if it has no JSON body."""
    try:
        return json.loads(request).get("body")
    except (ValueError, AttributeError):
        return None


def messages_of(body: Any) -> list[Any]:
    """Return the messages in the body of a model's request."""
    if not isinstance(body, Mapping):
        return []
    found: list[Any] = [{"role": "system", "content": body[name]} for name in _SYSTEM if body.get(name)]
    return found + listed_in(body)


def listed_in(body: Any) -> list[Any]:
    """Return the messages in a body's list, without a system prompt that has its own field."""
    if not isinstance(body, Mapping):
        return []
    listed: Any = next((body[name] for name in _LISTS if name in body), [])
    return listed if isinstance(listed, list) else [{"role": "user", "content": listed}]


def role_of(message: Any) -> str:
    """Return system, user, assistant, tool …, independent of the protocol's word."""
    if not isinstance(message, Mapping):
        return "user"
    if str(message.get("type")) in _RESULT_TYPES or _holds_result(message):
        return "tool"
    return str(message.get("role") or message.get("type") or "user")


def _holds_result(message: Mapping[str, Any]) -> bool:
    parts = message.get("content", message.get("parts"))
    return isinstance(parts, list) and any(
        isinstance(p, Mapping) and (p.get("type") in _RESULT_TYPES or "functionResponse" in p) for p in parts
    )


def compare(recorded: str, now: str) -> Comparison:
    """Compare two requests, message by message; an inserted message doesn't change those after it."""
    a, b = read_messages(recorded), read_messages(now)
    a_texts, b_texts = [_write(m) for m in a], [_write(m) for m in b]
    head, tail = common_ends(a_texts, b_texts)
    changes: list[Change] = []
    texts: list[str] = []
    matcher = SequenceMatcher(None, a_texts[head : len(a) - tail], b_texts[head : len(b) - tail], autojunk=False)
    for tag, a_at, a_end, b_at, b_end in matcher.get_opcodes():
        if tag == "equal":
            continue
        shared = min(a_end - a_at, b_end - b_at)
        for i in range(head + b_at, head + b_end):
            changes.append(Change(i, role_of(b[i]), CHANGED if i < head + b_at + shared else INJECTED))
            texts.append(b_texts[i])
        changes += [Change(i, role_of(a[i]), DROPPED) for i in range(head + a_at + shared, head + a_end)]
    if not changes:
        return Comparison()
    first = changes[0]
    before = (a if first.change == DROPPED else b)[: first.index + 1]
    turn = sum(role_of(m) == "user" for m in before)
    return Comparison(tuple(changes[:CHANGES_MAX]), max(1, turn), tuple(texts[:CHANGES_MAX]))


def _write(message: Any) -> str:
    return json.dumps(message, sort_keys=True)
