"""Values known to hold no secret, so that resent history is looked up instead of walked."""

from __future__ import annotations

import marshal
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any, Final

from spanreplay.redact.names import secret_name
from spanreplay.redact.plain import write_plain

__all__ = ["KnownClean"]

KEYS_MAX: Final = 4096
TAG: Final = "$type"
"""The codec's tag: a member of this name makes an object something else."""
LISTS_MAX: Final = 16
LIST_ITEMS_MIN: Final = 4
LIST_BYTES_MAX: Final = 512 * 1024
_LIST_HEADER: Final = 5
"""Bytes before a list's first element in marshal's format: type and length."""
_PLAIN: Final = frozenset((type(None), bool, int, float))


class KnownClean:
    """Prunes a value to the parts that redaction still has to look at. Thread-safe: single dictionary operations.

    `is_text_clean` tells whether redaction is known to leave a text unchanged; texts shorter than `chars_min` are
    clean.
    """

    def __init__(self, is_text_clean: Callable[[str], bool], chars_min: int) -> None:
        self._is_text_clean = is_text_clean
        self._chars_min = chars_min
        self._keys: set[str] = set()
        self._written_keys: dict[str, str] = {}
        self._check_text, self._write_new_key = self._is_text_plain, self._write_key  # bound once
        self._lists: tuple[tuple[bytes, int], ...] = ()
        """Marshalled lists without their header, and their lengths; newest first."""

    def write(self, value: Any) -> str:
        """The JSON text of a small value of plain types that is known to be clean; codec and redaction agree on it.

        '' for any other value, including a clean one that is not yet known to be.
        """
        return write_plain(value, self._check_text, self._written_keys, self._write_new_key)

    def _is_text_plain(self, text: str) -> bool:
        if not text.isascii() or text[:2] == "--":
            return False
        return len(text) < self._chars_min or self._is_text_clean(text)

    def _write_key(self, key: str) -> str:
        if not key.isascii() or key == TAG or not self._is_key_clean(key):
            return ""
        written = f"{encode_basestring(key)}:"
        if len(self._written_keys) < KEYS_MAX:
            self._written_keys[key] = written
        return written

    def prune(self, value: Any) -> Any:
        """The value without the parts known to be clean; None if nothing is left.

        Redaction finds the same in the result as in the value: an object with a key name that says something about
        its members stays whole, and so does a list with command line options.
        """
        return self._prune_members(value, is_top=True) if type(value) is dict else self._prune(value)

    def remember(self, value: Any) -> None:
        """Remember the lists of a clean object, so that a growing conversation is recognised as a whole."""
        if type(value) is not dict:
            return
        for member in value.values():
            if type(member) is list and len(member) >= LIST_ITEMS_MIN and all(type(item) is dict for item in member):
                self._remember_list(member)

    def _remember_list(self, items: list[Any]) -> None:
        blob = _marshal(items)
        if blob is None or len(blob) > LIST_BYTES_MAX:
            return
        others = [known for known in self._lists if not blob.startswith(known[0])]
        self._lists = ((blob, len(items)), *others[: LISTS_MAX - 1])

    def _count_known(self, items: list[Any]) -> int:
        """The number of leading elements that are known to be clean."""
        if not self._lists or len(items) < LIST_ITEMS_MIN:
            return 0
        blob = _marshal(items)
        if blob is not None:
            for known, length in self._lists:
                # The elements delimit themselves: equal bytes are equal elements
                if blob.startswith(known):
                    return length
        return 0

    def _prune(self, value: Any) -> Any:
        kind = type(value)
        if kind is str:
            return None if self._is_text_clean(value) else value
        if kind is dict:
            return self._prune_members(value)
        if kind is list:
            return self._prune_items(value, 0)
        return None if kind in _PLAIN else value

    def _prune_members(self, members: dict[Any, Any], *, is_top: bool = False) -> Any:
        kept: dict[str, Any] | None = None
        keys = self._keys
        for key, member in members.items():
            if key not in keys and not self._is_key_clean(key):
                return members
            if type(member) in _PLAIN:
                continue
            if is_top and type(member) is list:
                rest = self._prune_items(member, self._count_known(member))
            else:
                rest = self._prune(member)
            if rest is not None:
                if kept is None:
                    kept = {}
                kept[key] = rest
        return kept

    def _prune_items(self, items: list[Any], known: int) -> Any:
        kept: list[Any] | None = None
        for item in items[known:] if known else items:
            kind = type(item)
            if kind in _PLAIN:
                continue
            if kind is str and item[:2] == "--":
                return items
            rest = self._prune(item)
            if rest is not None:
                if kept is None:
                    kept = []
                kept.append(rest)
        return kept

    def _is_key_clean(self, key: Any) -> bool:
        if type(key) is not str or secret_name(key) is not None or key.lower() == "headers":
            return False
        if not self._is_text_clean(key):
            return False
        if len(self._keys) < KEYS_MAX:
            self._keys.add(key)
        return True


def _marshal(items: list[Any]) -> bytes | None:
    """The elements as bytes that are equal only for equal values; None if they can't be marshalled."""
    try:
        return marshal.dumps(items, 2)[_LIST_HEADER:]  # version 2 has no back references
    except ValueError:
        return None
