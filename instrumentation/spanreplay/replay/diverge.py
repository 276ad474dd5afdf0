"""Divergences: structured differences between a recording and its replay; pure."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

DIFFS_MAX: Final = 20
VALUE_CHARACTERS_MAX: Final = 400
_AROUND: Final = 60
_ABSENT: Final = "(absent)"


@dataclass(frozen=True)
class Diff:
    """One differing place; `at` is the first differing character of two strings, else -1."""

    path: str
    recorded: Any
    now: Any
    at: int = -1


@dataclass(frozen=True)
class Divergence:
    """One structured difference; `is_downstream` if an earlier one brought it about."""

    kind: str
    boundary: str
    message: str
    lane: str = ""
    index: int = 0
    seq: int = 0
    code: str = ""
    diff: tuple[Diff, ...] = ()
    cause: str = ""
    hint: str = ""
    is_downstream: bool = False
    recorded_span_id: str = ""
    replay_span_id: str = ""

    def to_json(self) -> dict[str, Any]:
        """The form of schema divergence/1."""
        value = asdict(self)
        value["downstream"] = value.pop("is_downstream")
        value["diff"] = [{k: v for k, v in d.items() if k != "at" or v >= 0} for d in map(asdict, self.diff)]
        return value


def diff_json(recorded: str, now: str) -> tuple[Diff, ...]:
    """Where two JSON texts differ, at most 20 places; texts that are not JSON are compared as strings."""
    try:
        a, b = json.loads(recorded), json.loads(now)
    except ValueError:
        a, b = recorded, now
    found: list[Diff] = []
    for diff in _walk(a, b, ""):
        found.append(diff)
        if len(found) >= DIFFS_MAX:
            break
    return tuple(found)


def comparable_response(text: str) -> str:
    """A response without what differs from call to call: of an HTTP exchange its times and headers."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if not isinstance(value, dict) or not isinstance(value.get("chunks"), list):
        return text
    pieces = [chunk[1] for chunk in value["chunks"]]
    body: Any = "".join(pieces) if all(isinstance(p, str) for p in pieces) else pieces
    if isinstance(body, str) and body[:1] in ("{", "["):
        with contextlib.suppress(ValueError):
            body = json.loads(body)
    kept = {name: value[name] for name in ("status", "end", "error") if name in value}
    return json.dumps({**kept, "body": body}, ensure_ascii=False)


def _walk(a: Any, b: Any, path: str) -> Iterator[Diff]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            below = f"{path}.{key}" if path else str(key)
            yield from _walk(a.get(key, _ABSENT), b.get(key, _ABSENT), below)
    elif isinstance(a, list) and isinstance(b, list):
        for i in range(max(len(a), len(b))):
            below = f"{path}[{i}]"
            yield from _walk(a[i] if i < len(a) else _ABSENT, b[i] if i < len(b) else _ABSENT, below)
    elif type(a) is not type(b) or a != b:
        at = _first_difference(a, b) if isinstance(a, str) and isinstance(b, str) else -1
        yield Diff(path or "$", _shorten(a, at), _shorten(b, at), at)


def _first_difference(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _shorten(value: Any, at: int) -> Any:
    if isinstance(value, str):
        if len(value) <= VALUE_CHARACTERS_MAX:
            return value
        start = max(0, at - _AROUND)
        piece = value[start : start + VALUE_CHARACTERS_MAX]
        return ("…" if start else "") + piece + ("…" if start + len(piece) < len(value) else "")
    if isinstance(value, (dict, list)):
        text = json.dumps(value, ensure_ascii=False)
        return value if len(text) <= VALUE_CHARACTERS_MAX else text[:VALUE_CHARACTERS_MAX] + "…"
    return value


def leaf_strings(text: str, length_min: int = 8) -> set[str]:
    """The string leaves of a JSON text that are long enough to recognise elsewhere."""
    try:
        value = json.loads(text)
    except ValueError:
        return {text} if len(text) >= length_min else set()
    found: set[str] = set()
    stack = [value]
    while stack and len(found) < 1000:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, str) and len(item) >= length_min:
            found.add(item)
    return found
