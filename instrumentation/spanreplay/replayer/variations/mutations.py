"""Candidate changes to a recording's answers, one field at a time: patches for `spanreplay mutate`; pure."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from spanreplay.model.call import Recording
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
from spanreplay.runtime.edits.apply_patch import patch_response
from spanreplay.runtime.edits.patch import parse_patch

DEPTH_MAX: Final = 20


@dataclass(frozen=True)
class Mutation:
    """One field of one answer, with its old and new value; `patch` is an argument for `--set`."""

    patch: str
    boundary: str
    call: int
    """The number of the call, from 1."""
    field: str
    before: Any
    now: Any


def find_mutations(
    recording: Recording, *, only: str = "*", fields: str = "*", count: int = 50, seed: int = 0
) -> list[Mutation]:
    """Return at most `count` mutations of fields like `fields` in answers that `only` selects, in the run's order.

    The same seed picks the same mutations; every call is visited once before any is visited twice. Raises: ConfigError.
    """
    by_call: list[list[Mutation]] = []
    for answer in read_answers(recording, only):
        found = [m for m in _of_answer(answer) if fnmatchcase(m.field, fields)]
        if found:
            by_call.append(found)
    chosen = _choose(by_call, count, random.Random(seed))  # noqa: S311 -- a sample, not a secret
    order = {id(m): at for at, m in enumerate(m for found in by_call for m in found)}
    return sorted(chosen, key=lambda m: order[id(m)])


def _choose(by_call: list[list[Mutation]], count: int, chance: random.Random) -> list[Mutation]:
    left = [chance.sample(found, len(found)) for found in by_call]
    chosen: list[Mutation] = []
    while len(chosen) < count and any(left):
        turn = [found for found in left if found]
        for found in chance.sample(turn, min(len(turn), count - len(chosen))):
            chosen.append(found.pop())
    return chosen


def _of_answer(answer: Answer) -> Iterator[Mutation]:
    call = answer.call
    for path, before in _fields(answer):
        now = _other(before)
        field = write_path(path)
        text = f"{answer.name}.response{field} = {json.dumps(now, ensure_ascii=False)}"
        try:
            patched, _ = patch_response(call.response, call.outcome, [parse_patch(text)])
        except ConfigError:  # a field that the grammar can't name, or that isn't part of the answer
            continue
        if patched != call.response:
            yield Mutation(text, call.boundary, call.number, field.lstrip(".") or WHOLE, before, now)


def _fields(answer: Answer) -> Iterator[tuple[Path, Any]]:
    """The scalar fields of an answer by path, as the patch grammar counts them; of a stream only the text."""
    if answer.shape == Shape.STREAM:
        yield ("text",), answer.value["text"]
    elif answer.shape != Shape.OTHER:
        yield from _walk(answer.value, ())


def _walk(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if len(path) >= DEPTH_MAX:
        return
    if isinstance(value, (dict, list)) or (isinstance(value, str) and is_json(value)):
        for step, inner in children(value):
            yield from _walk(inner, (*path, step))
    else:
        yield path, value


def _other(value: Any) -> Any:
    """Return a different value of the same type, similar enough for the code to continue with it."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value * 2 + 1
    if isinstance(value, float):
        return value * 2 + 0.5
    if isinstance(value, str):
        return f"mutated {value}"[: len(value) + len("mutated ")] if value else "mutated"
    return 0
