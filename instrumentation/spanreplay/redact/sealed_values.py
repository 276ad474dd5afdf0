"""Hidden values of a response, sealed beside it: with the redaction key, the original response can be served.

In a call's meta, under `sealed`: `sealing.seal` of

    {"of": HASH, "in": [[PATH, ORIGINAL]…]}

PATH points into the pair of the response and the call's printed output. ORIGINAL is a list of the texts that the
tokens of the text at PATH replaced, or an object whose member `is` is the whole original value. HASH is the hash of
the pair: values sealed beside one response can't be opened beside another.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from spanreplay.model.json_text import dump, load
from spanreplay.redact.engine import RunRedactor
from spanreplay.redact.sealing import seal, unseal
from spanreplay.redact.tokens import TOKEN

__all__ = ["SEALED", "TOKEN_TEXT", "Opened", "TooLarge", "fill_in", "open_sealed", "pick_out", "seal_values"]

SEALED: Final = "sealed"
"""Member of a call's meta."""
SEALED_BYTES_MAX: Final = 256 * 1024
"""Limit per call; larger content is not sealed, but counted."""
TOKEN_TEXT: Final = re.compile(TOKEN.pattern.decode("ascii"))
_PURPOSE: Final = b"values"
_WHOLE: Final = "is"

Path = list[str | int]


class Opened(NamedTuple):
    """A response as the agent saw it, and the call's printed output."""

    response: str
    printed: Any


class TooLarge(ValueError):
    """The hidden values exceed the limit for sealing."""


def seal_values(redactor: RunRedactor, response: str, raw: Any, printed: Any = None, raw_printed: Any = None) -> str:
    """Seal the values hidden in a response and in printed rows; '' if there are none. Raises: TooLarge.

    `raw` and `raw_printed` are the same as JSON values before their redaction; None if they are not to be sealed.
    """
    clean, true = load(response), None if raw is None else load(dump(raw))
    found: list[list[Any]] = []
    if true is not None:
        found += _find_hidden(clean, true, [0])
    if raw_printed is not None:
        found += _find_hidden(printed, raw_printed, [1])
    if not found:
        return ""
    content = dump({"of": _hash(response, printed), "in": found}).encode("utf-8", "surrogatepass")
    if len(content) > SEALED_BYTES_MAX:
        raise TooLarge(len(content))
    return seal(redactor.derive(_PURPOSE), content)


def open_sealed(redactor: RunRedactor, sealed: str, response: str, printed: Any = None) -> Opened | None:
    """The response with its hidden values; None with another key, or if anything was changed."""
    content = unseal(redactor.derive(_PURPOSE), sealed)
    if content is None:
        return None
    try:
        value = load(content.decode("utf-8", "surrogatepass"))
        if value["of"] != _hash(response, printed):
            return None
        both = [load(response), load(dump(printed))]
        for path, original in value["in"]:
            _put_back(both, path, original)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    return Opened(dump(both[0]), both[1])


def pick_out(clean: str, raw: str) -> list[str] | None:
    """The parts of a text that the tokens of its redacted form replaced; None if the two differ in more than that.

    If the rest lines up in several ways, any of them will do: `fill_in` returns the same text.
    """
    first, *rest = TOKEN_TEXT.split(clean)
    if not rest or not raw.startswith(first):
        return None
    found: list[str] = []
    position = len(first)
    for between in rest[:-1]:
        at = raw.find(between, position)
        if at < 0:
            return None
        found.append(raw[position:at])
        position = at + len(between)
    end = len(raw) - len(rest[-1])
    if end < position or not raw.endswith(rest[-1]):
        return None
    return [*found, raw[position:end]]


def fill_in(clean: str, found: list[str]) -> str:
    """Replace the tokens of a text with `found`. Raises: ValueError if the numbers differ."""
    parts = TOKEN_TEXT.split(clean)
    return "".join(piece for pair in zip(parts, [*found, ""], strict=True) for piece in pair)


def _hash(response: str, printed: Any) -> str:
    return hashlib.sha256(dump([response, printed]).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _find_hidden(clean: Any, raw: Any, path: Path) -> Iterator[list[Any]]:
    """Yield [path, original] for every place in which two JSON values differ."""
    if isinstance(clean, dict) and isinstance(raw, dict) and list(clean) == list(raw):
        for name, member in clean.items():
            yield from _find_hidden(member, raw[name], [*path, name])
    elif isinstance(clean, list) and isinstance(raw, list) and len(clean) == len(raw):
        for number, member in enumerate(clean):
            yield from _find_hidden(member, raw[number], [*path, number])
    elif type(clean) is not type(raw) or clean != raw:
        pieces = pick_out(clean, raw) if isinstance(clean, str) and isinstance(raw, str) else None
        yield [path, {_WHOLE: raw} if pieces is None else pieces]


def _put_back(both: list[Any], path: Path, original: Any) -> None:
    *way, last = path
    place: Any = both
    for step in way:
        place = place[step]
    place[last] = fill_in(place[last], original) if isinstance(original, list) else original[_WHOLE]
