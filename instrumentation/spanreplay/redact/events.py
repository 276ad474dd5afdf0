"""Streams of JSON events (server-sent events, JSON lines), over which one long text is spread.

A model streams its answer a few characters at a time, each piece in a separate JSON event. No event holds a whole
secret; it only appears when the strings at the same place in successive events are joined. The joined text is read
first: the part of a key in one event may look like a whole key, and replacing only that part would leave the rest.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from spanreplay.redact.document import NOT_JSON, Pairs, TextEdit, parse_json, parse_json_prefix

__all__ = ["SSE_START", "STREAMED", "Group", "Part", "cut_events", "group_pieces", "group_values", "is_streamed_array"]


class Part(NamedTuple):
    """The characters of a stream from `start`: the JSON of one event (`tree` is its value), a line of plain data
    (`tree` is NOT_JSON), or the text between payloads (`is_payload` is False)."""

    start: int
    text: str
    tree: object
    is_payload: bool


class Group(NamedTuple):
    """Strings that belong together; `places` holds each as (part, scalar of that part)."""

    places: list[tuple[int, int]]
    texts: list[str]
    is_growing: bool
    """Each string repeats the one before it and adds to it."""

    @property
    def text(self) -> str:
        """The whole text of which the strings are pieces."""
        return self.texts[-1] if self.is_growing else "".join(self.texts)

    def distribute(self, edits: Sequence[TextEdit]) -> Iterator[tuple[tuple[int, int], TextEdit]]:
        """Turn edits of the whole text into edits of its pieces."""
        if self.is_growing:
            for place, text in zip(self.places, self.texts, strict=True):
                for edit in edits:
                    if edit.start < len(text):
                        yield place, edit._replace(end=min(edit.end, len(text)))
            return
        for piece, edit in _distribute([len(text) for text in self.texts], edits):
            yield self.places[piece], edit


SSE_START: Final = re.compile(r"(?:data|event|id|retry)?:")
_DATA_LINE: Final = re.compile(r"^data: ?([^\r\n]*)", re.MULTILINE)
_LINE: Final = re.compile(r"^([^\r\n]+)", re.MULTILINE)
_BETWEEN: Final = re.compile(r"[\r\n]*(?:data: ?)?")
_ARRAY_START: Final = re.compile(r"\s*\[\s*(?=\{)")
_ARRAY_BETWEEN: Final = re.compile(r"\s*,?\s*")
STREAMED: Final = frozenset({"candidates", "choices", "delta", "completion", "outputs", "predictions"})
"""Members that only an element of a streamed array has; a message of a conversation does not."""
_TELLING: Final = frozenset({"item_id", "thought"})
"""Members that, like every integer named `…index`, distinguish strings that are streamed at the same time:
choices, content blocks, tool calls."""
_PLAIN: Final = ("data",)
_Path = tuple[object, ...]


def cut_events(text: str) -> list[Part] | None:
    """Cut the text into the parts that may hold a secret; None if the text is not a stream of events."""
    if SSE_START.match(text):
        return _cut_lines(text, _DATA_LINE)
    if text.startswith("{") and "\n" in text and parse_json(text[: text.index("\n")]) is not NOT_JSON:
        return _cut_lines(text, _LINE)
    start = _ARRAY_START.match(text)
    return _cut_array(text, start.end()) if start is not None else None


def is_streamed_array(tree: object) -> bool:
    """Whether a JSON array is a stream: each of its objects is a chunk of an answer."""
    return type(tree) is list and bool(tree) and all(map(_is_chunk, tree))


def _is_chunk(tree: object) -> bool:
    return isinstance(tree, Pairs) and not STREAMED.isdisjoint(name for name, _ in tree)


def _cut_array(text: str, position: int) -> list[Part] | None:
    """Cut a stream that is one JSON array, possibly truncated: Gemini without `alt=sse` sends one."""
    parts = [Part(0, text[:position], NOT_JSON, False)]
    while position < len(text):
        found = parse_json_prefix(text, position)
        if found is None:
            break
        tree, end = found
        if not _is_chunk(tree):
            return None
        parts.append(Part(position, text[position:end], tree, True))
        between = _ARRAY_BETWEEN.match(text, end)
        position = between.end() if between is not None else end
        if position > end:
            parts.append(Part(end, text[end:position], NOT_JSON, False))
    if position < len(text):
        parts.append(Part(position, text[position:], NOT_JSON, False))
    return parts if len(parts) > 2 else None


def _cut_lines(text: str, pattern: re.Pattern[str]) -> list[Part]:
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


def group_pieces(parts: Sequence[Part]) -> Iterator[Group]:
    """Group strings that belong together: at least two to a group, not all equal."""
    found = _Groups()
    for number, part in enumerate(parts):
        if part.is_payload:
            found.add(number, part.text if part.tree is NOT_JSON else part.tree)
    yield from found.groups()


def group_values(values: Sequence[object]) -> Iterator[Group]:
    """Like `group_pieces`, for values that arrived in sequence; a place is (0, scalar of the list of values)."""
    found = _Groups()
    for value in values:
        found.add(0, value)
    yield from found.groups()


class _Groups:
    """Strings by their path, then by the members (`index`) that distinguish strings of the same path."""

    def __init__(self) -> None:
        self._by_path: dict[_Path, dict[_Path, list[tuple[tuple[int, int], str]]]] = {}
        self._scalars: dict[int, int] = {}

    def add(self, number: int, value: object) -> None:
        places: list[tuple[_Path, _Path, str] | None] = []
        _walk(value, (), (), places)
        first = self._scalars.get(number, 0)
        self._scalars[number] = first + len(places)
        for scalar, place in enumerate(places, first):
            if place is not None:
                told = self._by_path.setdefault(place[0], {})
                told.setdefault(place[1], []).append(((number, scalar), place[2]))

    def groups(self) -> Iterator[Group]:
        for told in self._by_path.values():
            lists = list(told.values())
            if len(lists) > 2 and all(len(pieces) == 1 for pieces in lists):
                lists = [[pieces[0] for pieces in lists]]  # each index occurs once: it only counts the events
            for pieces in lists:
                texts = [text for _, text in pieces]
                if len(pieces) > 1 and any(text != texts[0] for text in texts):
                    yield Group([place for place, _ in pieces], texts, _is_growing(texts))


def _is_growing(texts: Sequence[str]) -> bool:
    """Whether each text begins with the whole previous one; for pieces of one text that holds only while tiny."""
    if len(texts[-1]) < 8:
        return False
    return all(new.startswith(old) for old, new in itertools.pairwise(texts))


def _walk(value: Any, path: _Path, told: _Path, places: list[tuple[_Path, _Path, str] | None]) -> None:
    """Append one entry for each scalar, in the order of `flatten`; None for keys and numbers."""
    if isinstance(value, str):
        places.append((path, told, value))
    elif isinstance(value, (Pairs, Mapping)):
        members = value if isinstance(value, Pairs) else value.items()
        inner = (*told, *(f"{name}={member}" for name, member in members if _tells(name, member)))
        for key, member in members:
            if isinstance(key, str):
                places.append(None)
            _walk(member, (*path, key), inner, places)
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            is_object = isinstance(item, (Pairs, Mapping))
            _walk(item, (*path, "*" if is_object else position), told, places)
    elif isinstance(value, (bytes, bytearray)) or (
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    ):
        places.append(None)


def _tells(name: object, member: object) -> bool:
    if not isinstance(name, str) or not member:  # some providers omit an index of 0
        return False
    return name in _TELLING or (type(member) is int and name[-5:].lower() == "index")


def _distribute(lengths: Sequence[int], edits: Sequence[TextEdit]) -> Iterator[tuple[int, TextEdit]]:
    """Turn edits of joined pieces into (piece, edit of that piece); the replacement goes where the edit starts."""
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
