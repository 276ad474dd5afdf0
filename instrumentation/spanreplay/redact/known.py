"""What is known to hold no secret, so that history that is sent again is looked up and not walked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from spanreplay.redact.names import secret_name

__all__ = ["KnownClean"]

KEYS_MAX: Final = 4096
_PLAIN: Final = frozenset((type(None), bool, int, float))


class KnownClean:
    """Prunes a value to what still has to be looked at. Thread-safe: single operations on dictionaries.

    `is_text_clean` tells whether it is known of a text that redaction leaves it as it is.
    """

    def __init__(self, is_text_clean: Callable[[str], bool]) -> None:
        self._is_text_clean = is_text_clean
        self._keys: set[str] = set()

    def prune(self, value: Any) -> Any:
        """The value without what is known to be clean; None if nothing is left.

        Equal to the value in everything that redaction looks at: an object with a key name that says something about
        its members, and a list with command line options, stay whole.
        """
        kind = type(value)
        if kind is str:
            return None if self._is_text_clean(value) else value
        if kind is dict:
            return self._prune_members(value)
        if kind is list:
            return self._prune_items(value)
        return None if kind in _PLAIN else value

    def _prune_members(self, members: dict[Any, Any]) -> Any:
        kept: dict[str, Any] | None = None
        keys = self._keys
        for key, member in members.items():
            if key not in keys and not self._is_key_clean(key):
                return members
            if type(member) in _PLAIN:
                continue
            rest = self.prune(member)
            if rest is not None:
                if kept is None:
                    kept = {}
                kept[key] = rest
        return kept

    def _prune_items(self, items: list[Any]) -> Any:
        kept: list[Any] | None = None
        for item in items:
            kind = type(item)
            if kind in _PLAIN:
                continue
            if kind is str and item[:2] == "--":
                return items
            rest = self.prune(item)
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
