"""Divergences: structured differences between a recording and its replay; pure."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from spanreplay.replayer.addresses import is_same_text, with_addresses_of

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord

DIFFS_MAX: Final = 20
VALUE_CHARACTERS_MAX: Final = 400
_AROUND: Final = 60
_ABSENT: Final = "(absent)"
NOT_KEPT: Final = "(not kept)"
"""Replaces a recorded value of which only a digest is left."""
_STEP: Final = re.compile(r"\[(\d+)\]|([^.\[]+)")


@dataclass(frozen=True)
class Diff:
    """One differing place; `at` is the first differing character of two strings, else -1."""

    path: str
    recorded: Any
    now: Any
    at: int = -1


@dataclass(frozen=True)
class Cause:
    """A possible origin of a changed value.

    `kind` is upstream_output, code, argument, environment, plan, clock, hash_seed, ignored_field, redaction or
    versions.
    `strength` says how it is known: `value` (the changed text itself is there), `place` (it is on the call's stack),
    `beside` (it changed too).
    """

    kind: str
    evidence: str
    strength: str
    ref: str = ""


STRENGTHS: Final = ("value", "place", "beside")
"""From the strongest evidence to the weakest."""


@dataclass(frozen=True)
class Candidate:
    """A recorded call that was near, and why it was rejected; `score` is 1 for an equal request."""

    seq: int
    call: int
    boundary: str
    lane: str
    index: int
    score: float
    why_rejected: str
    span_id: str = ""


@dataclass(frozen=True)
class Change:
    """One item of a list that differs from the recorded one: a message of a conversation, a chunk of a retrieval.

    `change` is injected, dropped, changed or moved; `name` is the role or the id.
    """

    index: int
    name: str
    change: str


@dataclass(frozen=True)
class Stated:
    """A value that two servers state under one name; '' if one doesn't."""

    name: str
    recorded: str
    now: str


@dataclass(frozen=True)
class Divergence:
    """One structured difference; `is_downstream` if an earlier one caused it."""

    kind: str
    boundary: str
    message: str
    lane: str = ""
    index: int = 0
    seq: int = 0
    """The Lamport clock value of the call in the replay; for a missing call, in the recording."""
    call: int = 0
    """The number of the recorded call, from 1; for a call that the recording lacks, its position in the replay."""
    code: str = ""
    diff: tuple[Diff, ...] = ()
    cause: str = ""
    hint: str = ""
    is_downstream: bool = False
    recorded_span_id: str = ""
    replay_span_id: str = ""
    downstream_of: int = 0
    """The call that caused it, if known."""
    part: str = ""
    """The one of the eight moving parts that changed (`moving_parts.py`)."""
    turn: int = 0
    """For a conversation: the first turn that differs, from 1."""
    context: tuple[Change, ...] = ()
    """Messages of a conversation that differ from the recorded ones."""
    chunks: tuple[Change, ...] = ()
    """Chunks of a retrieval that differ from the recorded ones."""
    serving: tuple[Stated, ...] = ()
    """For a model's answer: what the server states about itself, recorded and now."""
    causes: tuple[Cause, ...] = ()
    """All evidence that `cause` sums up, the best first."""
    candidates: tuple[Candidate, ...] = ()
    stack: tuple[str, ...] = ()
    """The agent's frames at the call, innermost first: `file:line qualname`."""

    def to_json(self) -> dict[str, Any]:
        """Return the form of schema divergence/1, without members that don't apply to this kind."""
        value = asdict(self)
        value["downstream"] = value.pop("is_downstream")
        value["diff"] = [{k: v for k, v in d.items() if k != "at" or v >= 0} for d in map(asdict, self.diff)]
        listed = {name: list(each) if isinstance(each, tuple) else each for name, each in value.items()}
        return {name: each for name, each in listed.items() if each or name not in _LEFT_OUT}


_LEFT_OUT: Final = frozenset(
    {"downstream_of", "part", "turn", "context", "chunks", "serving", "causes", "candidates", "stack"},
)


_PARTS: Final[tuple[tuple[str, Any], ...]] = (
    ("diff", Diff),
    ("context", Change),
    ("chunks", Change),
    ("serving", Stated),
    ("causes", Cause),
    ("candidates", Candidate),
)


def from_fields(fields: dict[str, Any]) -> Divergence:
    """Rebuild a divergence from the output of `dataclasses.asdict`, even after a JSON round trip."""
    made = {name: tuple(part(**each) for each in fields.get(name, ())) for name, part in _PARTS}
    return Divergence(**{**fields, **made, "stack": tuple(fields.get("stack", ()))})


def describe_stall(call: CallRecord | None, message: str) -> Divergence:
    """Describe a program that waits for a recorded call that doesn't end, or for nothing that was recorded."""
    if call is None:
        return Divergence(kind="order_stall", boundary="", message=message)
    return Divergence(
        kind="order_stall",
        boundary=call.boundary,
        message=message,
        lane=call.lane,
        index=call.index,
        seq=call.seq,
        call=call.number,
        recorded_span_id=call.span_id,
    )


def with_causes(divergence: Divergence, causes: list[Cause]) -> Divergence:
    """Return the divergence with this evidence, best first, and its summary in one line."""
    ranked = tuple(sorted(causes, key=lambda c: STRENGTHS.index(c.strength)))
    return replace(divergence, causes=ranked, cause=ranked[0].evidence if ranked else "")


def diff_json(recorded: str, now: str, *, is_model: bool = False) -> tuple[Diff, ...]:
    """Return where two JSON texts differ, at most 20 places; texts that aren't JSON are compared as strings.

    `is_model`: ignore the ids and times that a model generates for each answer.
    """
    try:
        a, b = json.loads(recorded), json.loads(now)
    except ValueError:
        a, b = recorded, now
    found: list[Diff] = []
    for diff in _walk(a, b, ""):
        if is_model and _is_drawn(diff):
            continue
        found.append(diff)
        if len(found) >= DIFFS_MAX:
            break
    return tuple(found)


def comparable_response(text: str) -> str:
    """Return a response without parts that vary between calls: an HTTP exchange loses its times and headers."""
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
    elif isinstance(body, str) and body.startswith(("data:", "event:")):
        body = [_read_event(line) for line in body.splitlines() if line.startswith("data:")]
    kept = {name: value[name] for name in ("status", "end", "error") if name in value}
    return json.dumps({**kept, "body": body}, ensure_ascii=False)


def _read_event(line: str) -> Any:
    content = line.removeprefix("data:").strip()
    try:
        return json.loads(content)
    except ValueError:
        return content


_DRAWN: Final = re.compile(
    r"(?:^|\.)(?:id|call_id|tool_call_id|tool_use_id|item_id|response_id|responseId|created|created_at|createTime)$"
)


def _is_drawn(diff: Diff) -> bool:
    return _DRAWN.search(diff.path) is not None and _ABSENT not in (diff.recorded, diff.now)


def _walk(a: Any, b: Any, path: str) -> Iterator[Diff]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            below = f"{path}.{key}" if path else str(key)
            yield from _walk(a.get(key, _ABSENT), b.get(key, _ABSENT), below)
    elif isinstance(a, list) and isinstance(b, list):
        yield from _walk_lists(a, b, path)
    elif isinstance(a, str) and isinstance(b, str):
        if not is_same_text(a, b):
            at = _first_difference(a, with_addresses_of(a, b))
            yield Diff(path or "$", _shorten(a, at), _shorten(b, at), at)
    elif type(a) is not type(b) or a != b:
        yield Diff(path or "$", _shorten(a, -1), _shorten(b, -1), -1)


def _walk_lists(a: list[Any], b: list[Any], path: str) -> Iterator[Diff]:
    """Compare elements side by side; an insertion or deletion in one place doesn't change all later elements."""
    head, tail = (0, 0) if len(a) == len(b) else common_ends(a, b)
    a_left, b_left = a[head : len(a) - tail], b[head : len(b) - tail]
    for i in range(max(len(a_left), len(b_left))):
        yield from _walk(
            a_left[i] if i < len(a_left) else _ABSENT, b_left[i] if i < len(b_left) else _ABSENT, f"{path}[{head + i}]"
        )


def common_ends(a: Sequence[Any], b: Sequence[Any]) -> tuple[int, int]:
    """Return how many elements two sequences share at their beginning and, of the rest, at their end."""
    shorter = min(len(a), len(b))
    head = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    left = shorter - head
    tail = next((i for i in range(left) if a[-1 - i] != b[-1 - i]), left)
    return head, tail


def find_value(fields: Any, path: str) -> Any:
    """Return the value at a path as `Diff` writes it, cut to the length that a report shows."""
    value = fields
    for number, name in _STEP.findall(path):
        try:
            value = value[int(number)] if number else value[name]
        except (KeyError, IndexError, TypeError):
            return _ABSENT
    return _shorten(value, 0)


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
    """Return the string leaves of a JSON text that are long enough to recognise elsewhere."""
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
