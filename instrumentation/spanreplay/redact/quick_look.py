"""Fast path for values that hold no secret: one walk collects the texts that were not seen before.

It never contradicts redaction. If a value is more than plain texts under plain names (a secret name, a command line,
a stream of events, a text in which something was found), it gives up, and the redactor reads the value as usual.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from spanreplay.model.config import BODY_BYTES_MAX
from spanreplay.redact.events import SSE_START, STREAMED
from spanreplay.redact.finder import Finder
from spanreplay.redact.memo import Memo
from spanreplay.redact.names import Strength, holds_secret, secret_name

__all__ = ["JSON_DEPTH_MAX", "STRUCTURE_STARTS", "TEXT_CHARS_MIN", "QuickLook"]

JSON_DEPTH_MAX: Final = 6
STRUCTURE_STARTS: Final = '{[" \t\r\n' + "deir:"
"""First characters of JSON, and of `data:`, `event:`, `id:`, `retry:` and `:`."""
TEXT_CHARS_MIN: Final = 6
"""No rule can match a shorter text."""
KEYS_MAX: Final = 4096
NEW_CHARS_MAX: Final = BODY_BYTES_MAX // 8
"""More new text than this is left to the redactor: findings in it may not be remembered."""
_WHITESPACE: Final = " \t\r\n"
_PLAIN: Final = frozenset((type(None), bool, int, float))
# An object becomes a tuple of its members, duplicates included; digits that `int` refuses are left to the redactor
_read: Final = json.JSONDecoder(object_pairs_hook=tuple, strict=False).raw_decode


class GivesUp(Exception):
    """A quick look cannot decide this."""


class QuickLook:
    """Recognises values that need no redaction. Thread-safe: single dictionary operations.

    `is_clean_structure` tells whether a text that begins like JSON is known to be clean as a scalar of a whole
    value; `structures` remembers further ones.
    """

    def __init__(self, finder: Finder, memo: Memo, structures: Memo, is_clean_structure: Callable[[str], bool]) -> None:
        self._finder = finder
        self._known = memo.get
        self._structures = structures
        self._is_clean_structure = is_clean_structure
        self._keys: set[str] = set()
        """Names that say nothing about their values, and in which nothing was found."""

    def is_clean(self, headers: Iterable[Sequence[str]], texts: Iterable[str] = ()) -> bool:
        """Whether a quick look shows that headers and texts need no redaction; False means unknown.

        All new texts are scanned together, which costs less than one by one.
        """
        if self._finder.recall:  # in a replay each text is compared with what was served
            return False
        unseen: dict[str, None] = {}
        structures: list[str] = []
        try:
            self._look_at_headers(headers, unseen, structures)
            for text in texts:
                if len(text) >= TEXT_CHARS_MIN:
                    self._open(text, 0, unseen, structures)
            return self._is_new_clean(unseen, structures)
        except Exception:  # noqa: BLE001 -- the redactor itself decides, and fails closed
            return False

    def is_value_clean(self, value: Any) -> bool:
        """Like `is_clean`, for a value."""
        if self._finder.recall or type(value) not in (dict, list):
            return False
        unseen: dict[str, None] = {}
        structures: list[str] = []
        try:
            self._look_inside(value, 0, unseen, structures)
            return self._is_new_clean(unseen, structures)
        except Exception:  # noqa: BLE001 -- as above
            return False

    def _is_new_clean(self, unseen: dict[str, None], structures: list[str]) -> bool:
        if unseen:
            if sum(map(len, unseen)) > NEW_CHARS_MAX:
                return False
            self._finder.scan(list(unseen))
            known = self._known
            for text in unseen:
                if known(text) != ():
                    return False
        for text in structures:
            self._structures.put(text, ())
        return True

    def _look_at_headers(self, pairs: Iterable[Sequence[str]], unseen: dict[str, None], structures: list[str]) -> None:
        keys, known = self._keys, self._known
        for name, value in pairs:
            if type(value) is not str:
                raise GivesUp
            if name not in keys:
                self._look_at_key(name, value, 0, unseen, structures)
            if len(value) < TEXT_CHARS_MIN:
                continue
            if value[0] in STRUCTURE_STARTS:
                self._look_at_structure(value, 0, unseen, structures)
                continue
            found = known(value)
            if found is None:
                unseen[value] = None
            elif found:
                raise GivesUp

    def _look_at_members(
        self, members: Iterable[tuple[Any, Any]], depth: int, unseen: dict[str, None], structures: list[str]
    ) -> None:
        keys, known = self._keys, self._known
        for key, member in members:
            if key not in keys:
                self._look_at_key(key, member, depth, unseen, structures)
            kind = type(member)
            if kind is str:
                if len(member) < TEXT_CHARS_MIN:
                    continue
                if member[0] in STRUCTURE_STARTS:
                    self._look_at_structure(member, depth, unseen, structures)
                    continue
                found = known(member)
                if found is None:
                    unseen[member] = None
                elif found:
                    raise GivesUp
            elif kind not in _PLAIN:
                self._look_inside(member, depth, unseen, structures)

    def _look_at_items(self, items: list[Any], depth: int, unseen: dict[str, None], structures: list[str]) -> None:
        for item in items:
            kind = type(item)
            if kind is str:
                if item[:2] == "--":
                    raise GivesUp
                if len(item) < TEXT_CHARS_MIN:
                    continue
                if item[0] in STRUCTURE_STARTS:
                    self._look_at_structure(item, depth, unseen, structures)
                else:
                    self._look_at_plain(item, unseen)
            elif kind not in _PLAIN:
                self._look_inside(item, depth, unseen, structures)

    def _look_inside(self, value: Any, depth: int, unseen: dict[str, None], structures: list[str]) -> None:
        kind = type(value)
        if kind is list:
            self._look_at_items(value, depth, unseen, structures)
        elif kind is dict:
            self._look_at_members(value.items(), depth, unseen, structures)
        elif kind is tuple and depth:  # read from a text: an object
            self._look_at_members(value, depth, unseen, structures)
        else:
            raise GivesUp

    def _look_at_key(self, key: Any, member: Any, depth: int, unseen: dict[str, None], structures: list[str]) -> None:
        if type(key) is not str:
            raise GivesUp
        strength = secret_name(key)
        if strength is not None and (strength is Strength.STRONG or holds_secret(strength, member, key)):
            raise GivesUp
        if key.lower() == "headers":
            raise GivesUp
        if len(key) >= TEXT_CHARS_MIN:
            if key[0] in STRUCTURE_STARTS:
                if not depth:
                    structures.append(key)
                if _is_structure(key):
                    self._open(key, depth, unseen, structures)
                    return
            self._look_at_plain(key, unseen)
            if key in unseen:
                return
        if strength is None and len(self._keys) < KEYS_MAX:
            self._keys.add(key)

    def _look_at_plain(self, text: str, unseen: dict[str, None]) -> None:
        found = self._known(text)
        if found is None:
            unseen[text] = None
        elif found:
            raise GivesUp

    def _look_at_structure(self, text: str, depth: int, unseen: dict[str, None], structures: list[str]) -> None:
        if not depth:
            if self._is_clean_structure(text):
                return
            structures.append(text)
        self._open(text, depth, unseen, structures)

    def _open(self, text: str, depth: int, unseen: dict[str, None], structures: list[str]) -> None:
        if depth >= JSON_DEPTH_MAX or not _is_structure(text):
            self._look_at_plain(text, unseen)
            return
        try:
            value, end = _read(text)
        except (ValueError, RecursionError):
            raise GivesUp from None
        kind = type(value)
        if (end != len(text) and text[end:].strip(_WHITESPACE)) or (kind is list and value and _may_be_chunk(value[0])):
            raise GivesUp
        if kind is str:
            self._look_at_items([value], depth + 1, unseen, structures)
        elif kind is tuple:
            self._look_at_members(value, depth + 1, unseen, structures)
        else:
            self._look_at_items(value, depth + 1, unseen, structures)


def _is_structure(text: str) -> bool:
    """Whether a text may be JSON or a stream of events."""
    first = text[0]
    if first in _WHITESPACE:
        first = text.lstrip(_WHITESPACE)[:1]
    return (first != "" and first in '{["') or SSE_START.match(text) is not None


def _may_be_chunk(value: Any) -> bool:
    return type(value) is tuple and not STREAMED.isdisjoint(name for name, _ in value)
