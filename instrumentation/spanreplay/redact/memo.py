"""Findings for the texts of a run, so that equal texts give equal results and history costs one look-up."""

from __future__ import annotations

from spanreplay.redact.document import TextEdit

__all__ = ["Memo"]


class Memo:
    """Texts and the edits found in them, in two generations, so that forgetting costs nothing.

    Reads and writes are single dictionary operations: threads may lose an entry, never corrupt one.
    """

    def __init__(self, items_max: int, chars_max: int) -> None:
        self._items_max = items_max // 2
        self._chars_max = chars_max // 2
        self._young: dict[str, tuple[TextEdit, ...]] = {}
        self._old: dict[str, tuple[TextEdit, ...]] = {}
        self._chars = 0

    def get(self, text: str) -> tuple[TextEdit, ...] | None:
        edits = self._young.get(text)
        if edits is None:
            edits = self._old.get(text)
            if edits is not None:
                self.put(text, edits)
        return edits

    def put(self, text: str, edits: tuple[TextEdit, ...]) -> None:
        if len(text) > self._chars_max:
            return
        if len(self._young) >= self._items_max or self._chars + len(text) > self._chars_max:
            self._old, self._young, self._chars = self._young, {}, 0
        self._young[text] = edits
        self._chars += len(text)

    def clear(self) -> None:
        """Forget everything."""
        self._young, self._old, self._chars = {}, {}, 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
