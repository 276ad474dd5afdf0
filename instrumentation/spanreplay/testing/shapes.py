"""The shape of an answer: JSON or prose, and the members that its objects always have; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["Shape", "compare_shapes", "shape_of"]

_FENCE: Final = re.compile(r"```\w*\n(?P<content>.*?)\n?```\Z", re.DOTALL)
_WORDS: Final[Mapping[type, str]] = {
    dict: "an object",
    list: "a list",
    tuple: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}
_NULL: Final = "null"
MEMBERS_MAX: Final = 200


@dataclass(frozen=True)
class Shape:
    """What an answer is, in words; for an object, the words for its members."""

    word: str
    members: Mapping[str, str] = field(default_factory=dict)


def shape_of(value: Any) -> Shape:
    """The shape of a value. Text that holds a JSON object or list is JSON; the code fence around it counts as well."""
    if not isinstance(value, str):
        return _shape_of_value(value, "")
    text = value.strip()
    if not text:
        return Shape("nothing")
    fenced = _FENCE.match(text)
    content = fenced["content"].strip() if fenced is not None else text
    if content[:1] in ("{", "["):
        try:
            parsed = json.loads(content)
        except ValueError:
            return Shape("prose")
        return _shape_of_value(parsed, " as JSON in a code block" if fenced is not None else " as JSON")
    return Shape("prose")


def _shape_of_value(value: Any, how: str) -> Shape:
    word = _word_of(value) + how
    if not isinstance(value, Mapping):
        return Shape(word)
    return Shape(word, {str(name): _word_of(member) for name, member in list(value.items())[:MEMBERS_MAX]})


def _word_of(value: Any) -> str:
    return _WORDS.get(type(value), type(value).__name__)


def compare_shapes(baselines: Sequence[Sequence[Any]], now: Sequence[Any]) -> list[str]:
    """What is different about the answers of now, in words; each baseline is the answers of one run."""
    before = [[shape_of(value) for value in answers] for answers in baselines]
    after = [shape_of(value) for value in now]
    flat = [shape for shapes in before for shape in shapes]
    if not flat or not after:
        return []
    known = {shape.word for shape in flat}
    found = [
        f"{_count(after, word)} of {len(after)} answers {_be(_count(after, word))} {word}; in the baseline: "
        f"{_enumerate(flat)}"
        for word in dict.fromkeys(shape.word for shape in after)
        if word not in known
    ]
    is_whole = len(after) >= min(len(shapes) for shapes in before)
    for word in sorted(known - {shape.word for shape in after}):
        if is_whole and not found and all(any(shape.word == word for shape in shapes) for shapes in before):
            found.append(f"no answer is {word} any more; now: {_enumerate(after)}")
    return found or _compare_members(flat, after)


def _compare_members(before: Sequence[Shape], after: Sequence[Shape]) -> list[str]:
    found: dict[str, None] = {}
    for word in dict.fromkeys(shape.word for shape in after):
        known = [shape.members for shape in before if shape.word == word]
        for name in known[0] if known else ():
            if not all(name in members for members in known):
                continue
            words = {members[name] for members in known}
            for shape in after:
                if shape.word != word:
                    continue
                now = shape.members.get(name)
                if now is None:
                    found[f"{name!r} is missing from {word}"] = None
                elif _NULL not in (now, *words) and now not in words:
                    found[f"{name!r} is {now}; in the baseline: {', '.join(sorted(words))}"] = None
    return list(found)


def _count(shapes: Iterable[Shape], word: str) -> int:
    return sum(shape.word == word for shape in shapes)


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def _enumerate(shapes: Sequence[Shape]) -> str:
    words = dict.fromkeys(shape.word for shape in shapes)
    return ", ".join(f"{word} ({_count(shapes, word)})" for word in words)
