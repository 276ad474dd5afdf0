"""Where and how the answers of a recording can change: sites, and the patches that make the changes; pure.

A *site* is one way to change one field of one answer; a *change* is a site with an amount, and a *variation* is a few
changes that fit together. Sites of a field are in the order of how little they change, so that a search for a smaller
variation is a search for earlier sites and smaller amounts. Values keep their type; missing and added fields, other
types and errors are kinds of their own.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from spanreplay.model.call import CallRecord, Recording
from spanreplay.model.errors import ConfigError
from spanreplay.replayer.variations.answers import (
    WHOLE,
    Answer,
    Path,
    Shape,
    children,
    is_json,
    read_answers,
    write_path,
)
from spanreplay.replayer.variations.ways import Way, list_ways, number_ways, text_ways
from spanreplay.runtime.edits.apply_patch import patch_response
from spanreplay.runtime.edits.patch import PATCH_CHARACTERS_MAX, parse_patch

__all__ = [
    "CHANGES_MAX",
    "KINDS",
    "Change",
    "Field",
    "Site",
    "Variation",
    "find_fields",
    "fits",
    "patch_answers",
    "patch_call",
]

VALUE, LIST, MISSING, ADDED, TYPE, STREAM, ERROR = "value", "list", "missing", "added", "type", "stream", "error"
KINDS: Final = (VALUE, LIST, MISSING, ADDED, TYPE, STREAM, ERROR)
CHANGES_MAX: Final = 4
"""Largest number of fields that one variation changes."""
DEPTH_MAX: Final = 20
FIELDS_MAX: Final = 2_000
"""Largest number of fields of one answer that are considered."""
_PATCH_MAX: Final = PATCH_CHARACTERS_MAX // 10
"""Four such patches fit into the variable that holds a plan."""
_ADDED_NAME: Final = "unexpected"
_RAISED: Final = (
    "TimeoutError: no answer in time",
    "ConnectionError: connection refused",
    "ValueError: invalid value",
    "PermissionError: not allowed",
)
_ANSWERED: Final = ("503", "429", "500", "400")
_FILLED: Final[tuple[Any, ...]] = (0, "", {})


@dataclass(frozen=True)
class Site:
    """One way to change one field; `patch(amount)` is an argument for `--set`, for each amount below `amounts`."""

    kind: str
    patch: Callable[[int], str]
    amounts: int = 1
    marks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Field:
    """A field of an answer, with the ways to change it."""

    call: CallRecord
    path: str
    before: Any
    sites: tuple[Site, ...]


@dataclass(frozen=True)
class Change:
    """One change of a variation: the site of a field, and an amount."""

    field: Field
    site: Site
    amount: int

    @property
    def patch(self) -> str:
        """The argument for `--set`."""
        return self.site.patch(self.amount)


Variation = tuple[Change, ...]


def find_fields(
    recording: Recording, *, only: str = "*", fields: str = "*", kinds: Sequence[str] = KINDS
) -> list[Field]:
    """Fields like `fields` in answers that `only` selects, with their ways to change. Raises: ConfigError."""
    answers = [each for each in read_answers(recording, only) if each.shape != Shape.OTHER]
    texts: dict[tuple[str, Path], list[str]] = defaultdict(list)
    for answer in answers:
        for path, value, _ in _nodes(answer):
            if isinstance(value, str):
                texts[answer.call.boundary, _unnumbered(path)].append(value)
    found = []
    for answer in answers:
        for path, value, parent in _nodes(answer):
            name = write_path(path).lstrip(".") or WHOLE
            if not fnmatchcase(name, fields):
                continue
            elsewhere = texts[answer.call.boundary, _unnumbered(path)]
            sites = tuple(each for each in _sites(answer, path, value, parent, elsewhere) if each.kind in kinds)
            sites = tuple(each for each in sites if _is_possible(answer.call, each))
            if sites:
                found.append(Field(answer.call, name, value, sites))
    return found


def _unnumbered(path: Path) -> Path:
    return tuple("" if isinstance(step, int) else step for step in path)


def _is_possible(call: CallRecord, site: Site) -> bool:
    return len(site.patch(0)) <= _PATCH_MAX and fits(call, [site.patch(0)])


def fits(call: CallRecord, patches: Iterable[str]) -> bool:
    """Whether these patches can be made together to the answer of a call, and change it."""
    try:
        changed, outcome = patch_response(call.response, call.outcome, [parse_patch(each) for each in patches])
    except ConfigError:
        return False
    return changed != call.response or outcome != call.outcome


def patch_answers(recording: Recording, variation: Variation) -> Recording:
    """The recording with the answers of a variation. Raises: ConfigError if they do not fit."""
    patches: dict[int, list[str]] = defaultdict(list)
    for change in variation:
        patches[change.field.call.seq].append(change.patch)
    return replace(recording, calls=tuple(patch_call(call, patches.get(call.seq, ())) for call in recording.calls))


def patch_call(call: CallRecord, patches: Iterable[str]) -> CallRecord:
    """A call with a changed answer; a stream with fewer parts has fewer times. Raises: ConfigError."""
    parsed = [parse_patch(each) for each in patches]
    if not parsed:
        return call
    response, outcome = patch_response(call.response, call.outcome, parsed)
    parts = json.loads(response).get("chunks") if call.clocks else None
    clocks = call.clocks if parts is None or len(parts) >= len(call.clocks) else call.clocks[: len(parts)]
    return replace(call, response=response, outcome=outcome, clocks=clocks)


# ── the fields of an answer ─────────────────────────────────────────────────────────────────────────
def _nodes(answer: Answer) -> Iterator[tuple[Path, Any, Any]]:
    """The path, the value and the enclosing value of each field, those of fields included."""
    todo: list[tuple[Path, Any, Any]] = [((), answer.value, None)]
    for _ in range(FIELDS_MAX):
        if not todo:
            return
        path, value, parent = todo.pop()
        yield path, value, parent
        if len(path) < DEPTH_MAX:
            todo += reversed([((*path, step), inner, value) for step, inner in children(value)])


def _sites(answer: Answer, path: Path, value: Any, parent: Any, elsewhere: Sequence[str]) -> Iterator[Site]:
    is_stream = answer.shape == Shape.STREAM
    if is_stream and not path:  # made of its text and its events: neither can go
        yield from _whole(answer)
        return
    target = f"{answer.name}.response{write_path(path)}"
    is_typed, is_of_stream = isinstance(parent, dict) and "$type" in parent, is_stream and path == ("text",)
    for kind, way in _ways(value, elsewhere, is_typed=is_typed):
        yield _setting(STREAM if is_stream and path == ("events",) else kind, target, way)
    if is_typed or is_of_stream or path == ("events",):
        return
    if isinstance(parent, list):
        yield Site(STREAM if is_stream and len(path) == 2 else LIST, lambda by: f"delete {target}")
    elif path:
        yield Site(MISSING, lambda by: f"delete {target}")
    if value is not None:
        yield _setting(MISSING, target, Way(lambda by: None))
    if isinstance(value, dict) and "$type" not in value and _ADDED_NAME not in value:
        yield Site(ADDED, lambda by: f"{target}.{_ADDED_NAME} = 1")
    if not path:
        yield from _whole(answer)


def _whole(answer: Answer) -> Iterator[Site]:
    verb, choices = ("raises", _RAISED) if answer.shape == Shape.VALUE else ("answers", _ANSWERED)
    yield Site(ERROR, lambda by: f"{answer.name} {verb} {choices[by]}", len(choices), tuple(range(len(choices))))


def _setting(kind: str, target: str, way: Way) -> Site:
    def patch(by: int) -> str:
        return f"{target} = {json.dumps(way.now(by), ensure_ascii=False)}"

    return Site(kind, patch, way.amounts, way.marks)


def _ways(value: Any, elsewhere: Sequence[str], *, is_typed: bool) -> Iterator[tuple[str, Way]]:
    """The ways to change a value; those of a value that the codec rebuilds keep to its format."""
    if isinstance(value, bool):
        yield VALUE, Way(lambda by: not value)
    elif isinstance(value, (int, float)):
        yield from ((VALUE, way) for way in number_ways(value))
    elif isinstance(value, str) and not is_json(value):
        yield from ((VALUE, way) for way in text_ways(value, elsewhere, is_strict=is_typed))
    elif isinstance(value, list) and not is_typed:
        yield from ((LIST, way) for way in list_ways(value))
    if is_typed:
        return
    if value is None:
        yield TYPE, Way(lambda by: _FILLED[by], len(_FILLED))
    elif isinstance(value, (bool, int, float)):
        yield TYPE, Way(lambda by: json.dumps(value))
