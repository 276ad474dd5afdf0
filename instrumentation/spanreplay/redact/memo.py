"""Findings for the texts of a run, so that equal texts give equal results and history costs one look-up."""

from __future__ import annotations

from spanreplay.redact.document import TextEdit

__all__ = ["Memo", "SharedMemo"]


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
        self._shared: Memo | None = None

    def share(self, shared: Memo) -> None:
        """From now on, also know the clean texts of other runs, which know the same values to be secret."""
        self._shared = shared

    def detach(self) -> None:
        """Know only the texts of this run from now on, because it has learned a value that the others don't know."""
        self._shared = None

    def get(self, text: str) -> tuple[TextEdit, ...] | None:
        edits = self._young.get(text)
        if edits is None:
            edits = self._old.get(text)
            if edits is None and self._shared is not None:
                edits = self._shared.get(text)
            if edits is not None:
                self.put(text, edits)  # also what others know: in this run it stays clean, whatever is learned later
        return edits

    def put(self, text: str, edits: tuple[TextEdit, ...]) -> None:
        if len(text) > self._chars_max:
            return
        shared = self._shared
        if shared is not None and not edits:
            shared.put(text, edits)
        if len(self._young) >= self._items_max or self._chars + len(text) > self._chars_max:
            self._old, self._young, self._chars = self._young, {}, 0
        self._young[text] = edits
        self._chars += len(text)

    def clear(self) -> None:
        """Forget everything."""
        self._shared = None
        self._young, self._old, self._chars = {}, {}, 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


class SharedMemo:
    """The clean texts of the runs that have taken over the same values, such as the units of one process."""

    def __init__(self, items_max: int, chars_max: int) -> None:
        self._max = items_max, chars_max
        self._current: tuple[tuple[bytes, ...], Memo] | None = None

    def find(self, known: tuple[bytes, ...]) -> Memo:
        """The memo of runs that know these values to be secret, and no others; earlier ones are forgotten."""
        current = self._current
        if current is None or current[0] != known:
            current = self._current = known, Memo(*self._max)
        return current[1]
