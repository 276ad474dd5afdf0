"""Classifies the difference between a call and the recorded call in its place; pure."""

from __future__ import annotations

import json
from typing import Any, Final

from spanreplay.replayer.divergence import Diff

CHANGED, TYPE_CHANGED, UNSERIALIZABLE = "changed_call", "type_changed", "unserializable"
_ABSENT: Final = "(absent)"
_MARK: Final = "$unserializable"


def find_kind(diff: tuple[Diff, ...], request: str) -> str:
    """Return `unserializable` if a call can't be compared, `type_changed` if only types differ, else `changed_call`."""
    if find_unserializable(request):
        return UNSERIALIZABLE
    if diff and all(_is_type_change(d) for d in diff):
        return TYPE_CHANGED
    return CHANGED


def find_unserializable(request: str) -> str:
    """Return the JSON path of an argument without a codec; '' if all have one."""
    if _MARK not in request:
        return ""
    try:
        arguments: Any = json.loads(request).get("arguments")
    except (ValueError, AttributeError):
        return ""
    return str(arguments[_MARK]) if isinstance(arguments, dict) and _MARK in arguments else ""


def _is_type_change(diff: Diff) -> bool:
    """Whether one value is the other written in another type: 1 and '1', 1 and true, a list and a tuple."""
    if diff.path.endswith("$type"):
        return True
    a, b = diff.recorded, diff.now
    if _ABSENT in (a, b) or type(a) is type(b):
        return False
    return _spell(a) == _spell(b)


def _spell(value: Any) -> str:
    if isinstance(value, str):
        return value.strip().lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # 1.0 and 1 are the same number
    if isinstance(value, (bool, int, float)):
        return str(int(value) if isinstance(value, bool) else value)
    if isinstance(value, dict):
        return _spell_content(value)
    return json.dumps(value, sort_keys=True)


def _spell_content(value: dict[str, Any]) -> str:
    """Return the content of a typed codec value, without its type."""
    content = [value[name] for name in ("value", "items") if name in value]
    return _spell(content[0]) if len(content) == 1 else json.dumps(value, sort_keys=True)
