"""Streams of JSON events (server-sent events, JSON lines): what one long text was cut into.

A model streams its answer a few characters at a time, each in a JSON event of its own. A secret in the answer is
in none of them; it is in the strings of the same place of successive events, put together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from spanreplay.redact.document import NOT_JSON, Pairs, TextEdit, parse_json

__all__ = ["Part", "cut_events", "distribute", "group_pieces"]


class Part(NamedTuple):
    """Characters from `start` on: the JSON of one event (`tree` is its value), a line of plain data (NOT_JSON),
    or what stands between (no payload)."""

    start: int
    text: str
    tree: object
    is_payload: bool


_SSE_START: Final = re.compile(r"(?:data|event|id|retry)?:")
_DATA_LINE: Final = re.compile(r"^data: ?([^\r\n]*)", re.MULTILINE)
_LINE: Final = re.compile(r"^([^\r\n]+)", re.MULTILINE)
_BETWEEN: Final = re.compile(r"[\r\n]*(?:data: ?)?")
_TELLING: Final = frozenset({"index", "output_index", "content_index", "summary_index", "item_id"})
"""Members that tell apart the strings that are streamed at the same time: choices, content blocks, tool calls."""
_PLAIN: Final = ("data",)


def cut_events(text: str) -> list[Part] | None:
    """The parts of the text that may hold anything; None if it is no stream of events."""
    if _SSE_START.match(text):
        pattern = _DATA_LINE
    elif text.startswith("{") and "\n" in text and parse_json(text[: text.index("\n")]) is not NOT_JSON:
        pattern = _LINE
    else:
        return None
    parts: list[Part] = []
    position = 0
    for line in pattern.finditer(text):
        start, end = line.span(1)
        if _BETWEEN.fullmatch(text, position, start) is None:
            parts.append(Part(position, text[position:start], NOT_JSON, False))
        if end > start:
            payload = text[start:end]
            parts.append(Part(start, payload, parse_json(payload), True))
        position = end
    if position < len(text):
        parts.append(Part(position, text[position:], NOT_JSON, False))
    return parts


def group_pieces(parts: Sequence[Part]) -> Iterator[list[tuple[int, int]]]:
    """The strings that belong together, as (part, scalar of that part); at least two, and not all the same."""
    groups: dict[tuple[object, ...], list[tuple[int, int, str]]] = {}
    for number, part in enumerate(parts):
        if not part.is_payload:
            continue
        if part.tree is NOT_JSON:
            groups.setdefault(_PLAIN, []).append((number, 0, part.text))
            continue
        places: list[tuple[tuple[object, ...], str] | None] = []
        _walk(part.tree, (), places)
        for scalar, place in enumerate(places):
            if place is not None:
                groups.setdefault(place[0], []).append((number, scalar, place[1]))
    for pieces in groups.values():
        if len(pieces) > 1 and any(piece[2] != pieces[0][2] for piece in pieces):
            yield [(number, scalar) for number, scalar, _ in pieces]


def _walk(value: Any, path: tuple[object, ...], places: list[tuple[tuple[object, ...], str] | None]) -> None:
    """One entry for every scalar, in the order of `flatten`; None for keys and numbers."""
    kind = type(value)
    if kind is str:
        places.append((path, value))
    elif kind is Pairs:
        telling = [member for member in value if member[0] in _TELLING]
        inner = (*path, *map(str, telling)) if telling else path
        for key, member in value:
            places.append(None)
            _walk(member, (*inner, key), places)
    elif kind is list:
        for position, item in enumerate(value):
            is_told = type(item) is Pairs and any(key in _TELLING for key, _ in item)
            _walk(item, (*path, "*" if is_told else position), places)
    elif kind is int or (kind is float and math.isfinite(value)):
        places.append(None)


def distribute(lengths: Sequence[int], edits: Sequence[TextEdit]) -> Iterator[tuple[int, TextEdit]]:
    """Edits of a join as (piece, edit of that piece): the replacement goes where the edit starts."""
    start = 0
    first = 0
    for piece, length in enumerate(lengths):
        end = start + length
        while first < len(edits) and edits[first].end <= start:
            first += 1
        for index in range(first, len(edits)):
            edit = edits[index]
            if edit.start >= end:
                break
            begins_here = edit.start >= start
            yield (
                piece,
                TextEdit(
                    max(edit.start, start) - start,
                    min(edit.end, end) - start,
                    edit.text if begins_here else "",
                    edit.rule,
                ),
            )
        start = end
