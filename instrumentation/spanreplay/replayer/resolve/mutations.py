"""Candidate changes to a recording's answers, one field at a time: patches for `spanreplay mutate`; pure."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from spanreplay.model.call import CallRecord, Outcome, Recording
from spanreplay.model.errors import ConfigError
from spanreplay.runtime.edits.apply_patch import patch_response
from spanreplay.runtime.edits.patch import parse_patch
from spanreplay.runtime.edits.selector import parse_selector

DEPTH_MAX: Final = 20
TEXT_SHOWN: Final = 60
_EVENT_STREAM: Final = ("data:", "event:")
Path = tuple[str | int, ...]


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
    selector = parse_selector(only)
    numbers: Counter[str] = Counter()
    by_call: list[list[Mutation]] = []
    matching = [c for c in recording.calls if selector.matches(c.boundary, c.lane)]
    place = {call.seq: number for number, call in enumerate(matching, start=1)}
    for call in recording.calls:
        numbers[call.boundary] += 1
        is_meant = call.seq in place and selector.has(place[call.seq], len(matching))
        if is_meant and call.outcome == Outcome.OK.value:
            found = [m for m in _of_call(call, numbers[call.boundary]) if fnmatchcase(m.field, fields)]
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


def _of_call(call: CallRecord, number: int) -> Iterator[Mutation]:
    for path, before in _fields(call.response):
        now = _other(before)
        field = _write_path(path)
        text = f"{call.boundary}[{number}].response{field} = {json.dumps(now, ensure_ascii=False)}"
        try:
            patched, _ = patch_response(call.response, call.outcome, [parse_patch(text)])
        except ConfigError:  # a field that the grammar can't name, or that isn't part of the answer
            continue
        if patched != call.response:
            yield Mutation(text, call.boundary, call.number, field.lstrip(".") or "(all of it)", before, now)


def _fields(response: str) -> Iterable[tuple[Path, Any]]:
    """Return the scalar fields of an answer by path, as the patch grammar counts them."""
    try:
        value = json.loads(response)
    except ValueError:
        return ()
    if not isinstance(value, dict):
        return ()
    if isinstance(value.get("chunks"), list):
        pieces = [chunk[1] for chunk in value["chunks"]]
        text = "".join(pieces) if all(isinstance(p, str) for p in pieces) else ""
        if text.lstrip().startswith(_EVENT_STREAM):
            return [(("text",), "")]
        try:
            return _walk(json.loads(text), ())
        except ValueError:
            return [((), text)] if text else ()
    return _walk(value["value"], ()) if "value" in value else ()


def _walk(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if len(path) >= DEPTH_MAX:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            if not str(key).startswith("$"):  # the codec's own members
                yield from _walk(inner, (*path, str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _walk(inner, (*path, index))
    elif isinstance(value, str) and value[:1] in ("{", "[") and _is_json(value):
        yield from _walk(json.loads(value), path)
    else:
        yield path, value


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), (dict, list))
    except ValueError:
        return False


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


def _write_path(path: Path) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else _write_name(step) for step in path)


def _write_name(name: str) -> str:
    is_plain = name.replace("_", "a").replace("-", "a").isalnum() and not name[:1].isdigit() and name.isascii()
    return f".{name}" if is_plain and not name.startswith("-") else f"[{json.dumps(name)}]"
