"""JSON-like values and JSON texts as one flat list of scalars, and the way back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final, NamedTuple

from spanreplay.redact.names import Strength, holds_secret, is_json_schema, secret_name

Counts = MutableMapping[str, int]
"""Rule → number of redactions."""
PASSES_MAX: Final = 8

__all__ = ["Scalars", "TextEdit", "flatten", "graft", "parse_json", "parse_json_prefix", "place_in_json", "splice"]


class TextEdit(NamedTuple):
    """Replace characters [start, end) of a text with `text`, because of `rule`."""

    start: int
    end: int
    text: str
    rule: str


def splice(text: str, edits: Iterable[TextEdit]) -> str:
    """Apply edits, which must be sorted and disjoint, to the text."""
    pieces = []
    position = 0
    for edit in edits:
        pieces.append(text[position : edit.start])
        pieces.append(edit.text)
        position = edit.end
    pieces.append(text[position:])
    return "".join(pieces)


# ── Values ──────────────────────────────────────────────────────────────────────────────────────────
class Pairs(list[tuple[str, Any]]):
    """The members of a JSON object, duplicates included: a secret may hide in the first of two."""


class Scalars:
    """Keys, strings and numbers of a value in document order; `masked` are those that are secret by their key name.

    `told` are the masked scalars that are the direct value of such a name, not members of an object under it.
    """

    __slots__ = ("items", "masked", "told")

    def __init__(self) -> None:
        self.items: list[str | int | float] = []
        self.masked: list[int] = []
        self.told: list[int] = []

    def add(self, item: str | int | float, is_masked: bool) -> None:
        if is_masked:
            self.masked.append(len(self.items))
        self.items.append(item)


def flatten(value: object, scalars: Scalars, is_masked: bool = False) -> None:
    """Append every scalar of the value, in document order.

    Raises: TypeError for anything that JSON (or an OpenTelemetry attribute) cannot hold.
    """
    kind = type(value)
    if kind is str:
        scalars.add(value, is_masked)  # type: ignore[arg-type]  # a str: `type(x) is` does not narrow
    elif isinstance(value, (Pairs, Mapping)):
        _flatten_members(value, scalars, is_masked)
    elif kind is list:
        _flatten_items(value, scalars, is_masked)  # type: ignore[arg-type]  # a list, as above
    elif _is_empty(value):
        return
    elif isinstance(value, (int, float, str)):
        scalars.add(value, is_masked)
    elif isinstance(value, (bytes, bytearray)):
        scalars.add(value.decode("utf-8", "surrogateescape"), is_masked)
    elif isinstance(value, Sequence):
        _flatten_items(value, scalars, is_masked)
    else:
        raise TypeError(f"cannot redact a {type(value).__name__}")


def _is_empty(value: object) -> bool:
    """Whether the value is null, true or false, or NaN or Infinity, for which JSON has no literal."""
    return value is None or isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value))


def _flatten_members(members: Pairs | Mapping[Any, Any], scalars: Scalars, is_masked: bool) -> None:
    for key, value in members if isinstance(members, Pairs) else members.items():
        if not isinstance(key, str):
            flatten(value, scalars, is_masked)
            continue
        scalars.items.append(key)
        if is_masked:
            flatten(value, scalars, True)
            continue
        strength = secret_name(key)
        if strength is not None:
            first = len(scalars.items)
            is_secret = _is_secret_member(strength, key, value, members)
            flatten(value, scalars, is_secret)
            if is_secret and _is_flat(value):
                scalars.told.extend(range(first, len(scalars.items)))
        elif type(value) is list and key.lower() == "headers":
            _flatten_headers(value, scalars)
        else:
            flatten(value, scalars)


def _is_flat(value: object) -> bool:
    """Whether the value is a scalar or a list of scalars; an object has key names of its own."""
    if isinstance(value, (list, tuple)):
        return not any(isinstance(item, (Pairs, Mapping, list, tuple)) for item in value)
    return not isinstance(value, (Pairs, Mapping))


def _is_secret_member(strength: Strength, key: str, value: object, siblings: Pairs | Mapping[Any, Any]) -> bool:
    if strength is not Strength.STRONG:
        return holds_secret(strength, value, key) and "logprob" not in dict(siblings)
    if isinstance(value, Pairs):
        return not is_json_schema(dict(value))
    if isinstance(value, Mapping):
        return not is_json_schema(value)
    return True


def _flatten_items(items: Sequence[object], scalars: Scalars, is_masked: bool) -> None:
    """Flatten a list; in a command line, an item such as `--api-key` makes the next item secret."""
    is_option_value = False
    for item in items:
        is_secret = is_option_value and not (isinstance(item, str) and item.startswith("--"))
        if is_secret and isinstance(item, str):
            scalars.told.append(len(scalars.items))
        flatten(item, scalars, is_masked or is_secret)
        is_option_value = isinstance(item, str) and item.startswith("--") and secret_name(item) is Strength.STRONG


def _flatten_headers(headers: list[object], scalars: Scalars) -> None:
    """Flatten a list of (name, value) pairs, the form in which HTTP headers are recorded."""
    for pair in headers:
        if isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str):
            scalars.add(pair[0], False)
            strength = secret_name(pair[0])
            is_secret = strength is not None and holds_secret(strength, pair[1], pair[0])
            if is_secret:
                scalars.told.append(len(scalars.items))
            flatten(pair[1], scalars, is_secret)
        else:
            flatten(pair, scalars)


def graft(value: Any, replaced: Mapping[int, str], position: Iterator[int]) -> Any:
    """Return the value with some scalars replaced; unchanged parts are shared, not copied.

    `position` counts scalars in the order of `flatten`.
    """
    if _is_empty(value):
        return value
    if isinstance(value, (str, int, float)):
        return replaced.get(next(position), value)
    if isinstance(value, (bytes, bytearray)):
        text = replaced.get(next(position))
        return value if text is None else text.encode("utf-8", "surrogateescape")
    if isinstance(value, Mapping):
        return _graft_mapping(value, replaced, position)
    items = [graft(item, replaced, position) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    return tuple(items) if isinstance(value, tuple) else items


def _graft_mapping(value: Mapping[Any, Any], replaced: Mapping[int, str], position: Iterator[int]) -> Any:
    made = {}
    is_changed = False
    for key, member in value.items():
        new_key = replaced.get(next(position), key) if isinstance(key, str) else key
        new_member = graft(member, replaced, position)
        is_changed = is_changed or new_key is not key or new_member is not member
        made[new_key] = new_member
    return made if is_changed else value


# ── JSON texts ──────────────────────────────────────────────────────────────────────────────────────
NOT_JSON: Final = object()
_WHITESPACE: Final = " \t\r\n"


def _ignore_constant(_: str) -> None:
    """Read NaN and Infinity as None; they cannot hold a secret."""


def _parse_int(digits: str) -> int | float:
    """Read more than 4,300 digits, which `int` refuses, as a float."""
    return int(digits) if len(digits) <= 4300 else float(digits)


# strict=False admits raw line breaks in strings.
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=Pairs, parse_int=_parse_int, parse_constant=_ignore_constant, strict=False
)


def parse_json(text: str) -> object:
    """Parse a JSON object, array or string, with `Pairs` for objects; NOT_JSON if the text is anything else."""
    first = text[:1]
    if first in _WHITESPACE:
        first = text.lstrip(_WHITESPACE)[:1]
    if not first or first not in '{["':
        return NOT_JSON
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return NOT_JSON


def parse_json_prefix(text: str, start: int) -> tuple[object, int] | None:
    """The JSON value that begins at `start`, and its end; None if no complete value begins there."""
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None


_LITERAL: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?[0-9][0-9.eE+-]*', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\.", re.DOTALL)


def place_in_json(text: str, scalars: Scalars, edits: Mapping[int, Sequence[TextEdit]]) -> list[TextEdit]:
    """Turn edits of scalars into edits of the JSON text that they were read from; the rest stays byte for byte."""
    literals = list(_LITERAL.finditer(text))
    if len(literals) != len(scalars.items):
        raise ValueError("JSON literals do not line up")  # fails closed in the engine
    placed: list[TextEdit] = []
    for index in sorted(edits):
        literal = literals[index]
        start, end = literal.span()
        if isinstance(scalars.items[index], str):
            placed.extend(_place_in_literal(text[start + 1 : end - 1], start + 1, edits[index]))
        else:
            placed.extend(TextEdit(start, end, f'"{edit.text}"', edit.rule) for edit in edits[index])
    return placed


def _place_in_literal(raw: str, offset: int, edits: Sequence[TextEdit]) -> Iterator[TextEdit]:
    if "\\" in raw:
        wanted = [position for edit in edits for position in (edit.start, edit.end)]
        at = iter(_raw_positions(raw, wanted))
    else:
        at = iter([position for edit in edits for position in (edit.start, edit.end)])
    for edit in edits:
        escaped = json.dumps(edit.text)[1:-1]
        yield TextEdit(offset + next(at), offset + next(at), escaped, edit.rule)


def _raw_positions(raw: str, wanted: Sequence[int]) -> list[int]:
    """Map ascending character positions of a string to positions in its JSON literal."""
    positions = []
    extra = 0  # raw characters so far, minus decoded characters so far
    escapes = _ESCAPE.finditer(raw)
    escape = next(escapes, None)
    for position in wanted:
        while escape is not None and escape.start() - extra < position:
            extra += escape.end() - escape.start() - 1
            escape = next(escapes, None)
        positions.append(position + extra)
    return positions
